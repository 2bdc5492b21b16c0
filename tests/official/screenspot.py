"""ScreenSpot: the official elements, as UGround's evaluation keeps them in one list, with a description of its own beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import read, write_json

_PLATFORMS = ("mobile", "desktop", "web")
_KEYS = ("bbox", "instruction", "data_type", "data_source")
_SIZES = {
    ("android", 1080): (1080, 2400),
    ("ios", 1170): (1170, 2532),
    ("windows", 960): (960, 540),
    **{(source, 2560): (2560, 1440) for source in ("forum", "gitlab", "shop", "tool")},
}
"""Source and width -> size of the screenshots, as a copy of ScreenSpot-v2 has it for the same files; others are taken to be as large as
their elements need."""
_SIDE = {"mobile": 672}
"""UGround scales a screenshot so that its width is this; else 1344."""


def _pour(root: Path) -> None:
    given = read(root / "copy.jsonl")
    for platform in _PLATFORMS:
        elements = [{"img_filename": item["image"]} | {key: item[key] for key in _KEYS} for item in given if item["platform"] == platform]
        write_json(root / f"screenspot_{platform}.json", elements)


def _sizes(root: Path) -> dict[str, tuple[int, int]]:
    needed: dict[str, tuple[int, int]] = {}
    for item in read(root / "copy.jsonl"):
        (left, top, width, height), path = item["bbox"], f"screenspot_imgs/{item['image']}"
        before = needed.get(path, (1, 1))
        needed[path] = _size(item) or (max(before[0], left + width), max(before[1], top + height))
    return needed


def _size(item: dict[str, Any]) -> tuple[int, int] | None:
    return _SIZES.get((item["data_source"], round(_SIDE.get(item["platform"], 1344) / item["scale"])))


CASES = (
    Case(
        repository="OSU-NLP-Group/UGround",
        commit="3a9b9f2b607eefbfc93558c1f21e6f4049944bf1",
        date="2026-03-11",
        files={"offline_evaluation/ScreenSpot/re_gpt-4o.jsonl": "copy.jsonl"},
        how="poured",
        pour=_pour,
        sizes=_sizes,
        copied_from="ScreenSpot, by way of UGround's evaluation",
        split="test",
        records=1272,
        rows=1272,
        looks={
            "screenspot-desktop-0000": {
                "image": "screenspot_imgs/pc_ede36f9b-1154-4f76-b7f8-c15d7d3f9b6e.png",
                "gt": {"action": {"action": "click", "box": [947.92, 144.44, 993.75, 207.41]}},
                "meta": {"size": [960, 540], "category": "desktop_icon", "data_source": "windows"},
            },
        },
    ),
)
