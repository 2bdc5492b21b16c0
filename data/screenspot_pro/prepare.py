"""ScreenSpot-Pro to rows. Layout of the release: `annotations/{application}_{platform}.json`, `images/`.

Each file is a list of elements. Boxes are [x1, y1, x2, y2] in pixels of the screenshot, whose size `img_size` gives as [width, height];
they are cut to the screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.prepare.gui_rows import FORMS, element_row, field, usable
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, in_frame, main, official, read_json

NAME = "screenspot_pro"
TYPES = ("text", "icon")


def rows(root: Path, split: str, form: str = "action") -> Iterator[Row | Skipped]:
    """One row per element, with the English instruction; `test` is the only split.

    Raises:
        DataError: no annotation file is there, or one is not JSON.
        RowError: an element is not as described.
    """
    paths = sorted(official(root, "annotations").glob("*.json"))
    if not paths:
        raise DataError(f"{root / 'annotations'}: no JSON file is there; give the folder that holds 'annotations' and 'images'")
    for path in paths:
        for number, item in enumerate(read_json(path)):
            place = f"annotations/{path.name}, element {number}"
            yield usable(f"{NAME}-{field(item, 'id', place)}", partial(element, item, place, split, form))


def element(item: Any, place: str, split: str, form: str = "action") -> Row:
    if field(item, "ui_type", place) not in TYPES:
        raise RowError("bad_value", f"{place}: 'ui_type' is {item['ui_type']!r}; known: {', '.join(TYPES)}")
    size = field(item, "img_size", place)
    if not isinstance(size, list) or len(size) != 2 or not all(type(v) is int and v > 0 for v in size):
        raise RowError("bad_value", f"{place}: 'img_size' is {size!r}; it must be [width, height]")
    width, height = size
    box = in_frame(field(item, "bbox", place), (width, height), "norm1000")
    if box is None:
        raise RowError("bad_value", f"{place}: box {item['bbox']} has no area on a screen of {width} x {height}")
    return element_row(
        form,
        id=f"{NAME}-{field(item, 'id', place)}",
        task=NAME,
        image=f"images/{field(item, 'img_filename', place)}",
        instruction=field(item, "instruction", place),
        box=box,
        size=(width, height),
        meta={
            "split": split,
            "category": f"{item.get('group') or item['application']}_{item['ui_type']}",
            "platform": field(item, "platform", place),
            "application": field(item, "application", place),
            "group": item.get("group"),
            "element": item["ui_type"],
        },
    )


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("test",), options={"form": FORMS})

if __name__ == "__main__":
    main(DATASET)
