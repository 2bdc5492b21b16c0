"""ScreenSpot-v2: the official elements, as GUI-Actor's evaluation keeps them: boxes by their corners, keys by other names, with sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import read, write_json

_PLATFORMS = ("mobile", "desktop", "web")
_COPY = "verifier/ScreenSpot-v2-new"


def _record(item: dict[str, Any]) -> dict[str, Any]:
    left, top, right, bottom = item["bbox"]
    return {
        "img_filename": item["img_filename"],
        "bbox": [left, top, right - left, bottom - top],
        "instruction": item["instruction"],
        "data_type": item["ui_type"],
        "data_source": item["platform"],
    }


def _pour(root: Path) -> None:
    for platform in _PLATFORMS:
        write_json(root / f"screenspot_{platform}_v2.json", list(map(_record, read(root / f"copy/{platform}.json"))))


def _sizes(root: Path) -> dict[str, tuple[int, int]]:
    given = [item for platform in _PLATFORMS for item in read(root / f"copy/{platform}.json")]
    return {f"screenspotv2_image/{item['img_filename']}": tuple(item["img_size"]) for item in given}


CASES = (
    Case(
        repository="microsoft/GUI-Actor",
        commit="d98d1bbd01862f9112114b83b032f492c365a173",
        date="2025-10-29",
        files={f"{_COPY}/screenspot_{platform}_v2.json": f"copy/{platform}.json" for platform in _PLATFORMS},
        how="poured",
        pour=_pour,
        sizes=_sizes,
        copied_from="ScreenSpot-v2, by way of GUI-Actor's evaluation",
        split="test",
        records=1272,
        rows=1272,
        looks={
            "screenspot_v2-desktop-0000": {
                "image": "screenspotv2_image/pc_ede36f9b-1154-4f76-b7f8-c15d7d3f9b6e.png",
                "gt": {"action": {"action": "click", "box": [947.92, 144.44, 993.75, 207.41]}},
                "meta": {"size": [960, 540], "category": "desktop_icon", "data_source": "windows"},
            },
        },
    ),
)
