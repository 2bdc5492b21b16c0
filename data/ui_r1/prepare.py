"""UI-R1-3B-Train (arXiv:2503.21620) to rows: its clicks. Layout of the release: `train.json` and `train_imgs/`.

`train.json` is one list; `img_filename`, `instruction`, and for clicks `bbox`, which is [x1, y1, x2, y2] in pixels of the screenshot, whose
size is read from its file; boxes are cut to the screen. Other actions have `action` in place of a box.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.gui_rows import FORMS, element_row, field, screen_size, usable
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, in_frame, main, official, read_json

NAME = "ui_r1"
IMAGES = "train_imgs"


def rows(root: Path, split: str, form: str = "action") -> Iterator[Row | Skipped]:
    """One row per record with a box, in the order of the file; the others are left out.

    Raises:
        DataError: a file or a screenshot is missing.
        RowError: a record is not as described.
    """
    for number, item in enumerate(read_json(official(root, "train.json"))):
        name, place = f"{NAME}-{split}-{number:05d}", f"train.json, record {number}"
        image = f"{IMAGES}/{field(item, 'img_filename', place)}"
        if item.get("bbox") is None:
            yield Skipped(name, "another action than a click", listed=False)
        else:
            yield usable(name, partial(_row, item, root, image, name, place, split, form))


def _row(item: Any, root: Path, image: str, name: str, place: str, split: str, form: str) -> Row:
    size = screen_size(root, image)
    box = in_frame(item["bbox"], size, "norm1000")
    if box is None:
        raise RowError("bad_value", f"{place}: box {item['bbox']} has no area on a screen of {size}")
    instruction = field(item, "instruction", place)
    meta = {"split": split}
    return element_row(form, id=name, task=NAME, image=image, instruction=instruction, box=box, size=size, meta=meta)


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("train",), options={"form": FORMS})

if __name__ == "__main__":
    main(DATASET)
