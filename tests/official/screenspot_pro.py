"""ScreenSpot-Pro: the official elements beside a model's answers, as a copy of the authors' evaluation wrote them.

Sizes of the screens are not among them: they follow from the answers, which are given in thousandths and in pixels. Where an answer could
not be read, the size is the most frequent one of the folder that holds the box.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import read, write_json

_BOX = re.compile(r"\((\d+),(\d+)\),\((\d+),(\d+)\)")
_IMAGES = "./data/ScreenSpot-Pro/images/"
Size = tuple[int, int]


def _pour(root: Path) -> None:
    files: dict[str, list[dict[str, Any]]] = defaultdict(list)
    given = read(root / "answers.json")["details"]
    usual: dict[str, Counter[Size]] = defaultdict(Counter)
    for item in given:
        if (size := _answered(item)) is not None:
            usual[_folder(item)][size] += 1
    for item in given:
        name = item["task_filename"]
        files[name].append(
            {
                "id": f"{name}_{len(files[name])}",
                "img_filename": item["img_path"].removeprefix(_IMAGES),
                "img_size": list(_answered(item) or next(size for size, _ in usual[_folder(item)].most_common() if _holds(size, item))),
                "bbox": item["bbox"],
                "instruction": item["prompt_to_evaluate"],
                **{key: item[key] for key in ("ui_type", "group", "platform", "application")},
            }
        )
    for name, elements in files.items():
        write_json(root / f"annotations/{name}.json", elements)


def _folder(item: dict[str, Any]) -> str:
    return item["img_path"].rpartition("/")[0]


def _holds(size: Size, item: dict[str, Any]) -> bool:
    return item["bbox"][2] <= size[0] and item["bbox"][3] <= size[1]


def _answered(item: dict[str, Any]) -> Size | None:
    """The size by which thousandths became pixels; None where that gives no whole numbers."""
    found = _BOX.search(item["raw_response"])
    if found is None or not item["pred"]:
        return None
    left, top, right, bottom = map(int, found.groups())
    if not (left + right and top + bottom):
        return None
    width, height = item["pred"][0] * 2000 / (left + right), item["pred"][1] * 2000 / (top + bottom)
    size = round(width), round(height)
    return size if abs(width - size[0]) < 1e-3 and abs(height - size[1]) < 1e-3 and _holds(size, item) else None


CASES = (
    Case(
        repository="woodhalloween/ScreenSpot-Pro-GUI-Grounding",
        commit="6a890ec762142ec18a9445602cdccfff8f349cf2",
        date="2025-03-26",
        files={"results/qwen2vl.json": "answers.json"},
        how="poured",
        pour=_pour,
        copied_from="ScreenSpot-Pro, by way of results of its evaluation",
        split="test",
        records=1581,
        rows=1581,
        looks={
            "screenspot_pro-quartus_windows_0": {
                "image": "images/quartus_windows/screenshot_2024-11-02_18-46-37.png",
                "gt": {"action": {"action": "click", "box": [131.64, 47.22, 210.16, 64.58]}},
                "meta": {"size": [2560, 1440], "group": "Dev", "application": "quartus", "platform": "windows", "element": "text"},
            },
        },
    ),
)
