"""GUI-R1-3K (arXiv:2504.10458) to rows: its clicks with a true box. Layout of the release: `train.parquet`, screenshots inside.

Columns: `image` {bytes}, `instruction`, `id`, `gt_action`, `gt_bbox` (shares of the sides: a box, or the point of a click),
`gt_input_text`, `history`, `task_type`. Which rows are taken is the choice of UI-R1-E (arXiv:2503.21620): `gt_action` is click and
`gt_bbox` has four numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.errors import MediaError, RowError
from vlmrl.extras.importers.prepare.gui_rows import FORMS, element_row, field, usable
from vlmrl.extras.importers.prepare.hf_rows import Record, picture, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, in_frame, main
from vlmrl.media.headers import image_size

NAME = "gui_r1"
EDGE = 1.001
"""How far a share may be over the side by rounding; what is larger is in pixels, so another release."""


def rows(root: Path, split: str, form: str = "action") -> Iterator[Row | Skipped]:
    """One row per click with a box, in the order of the file. Other actions, and clicks with a point alone, are left out by kind.

    Raises:
        DataError: the file is missing or not Parquet.
        RowError: a record is not as described.
    """
    for number, item in enumerate(records(root, "train.parquet")):
        name, place = f"{NAME}-{split}-{number:05d}", f"train.parquet, record {number}"
        if field(item, "gt_action", place) != "click":
            yield Skipped(name, "another action than a click", listed=False)
        elif len(field(item, "gt_bbox", place)) != 4:
            yield Skipped(name, "a click with a point, without a box", listed=False)
        else:
            yield usable(name, partial(_row, item, name, place, split, form))


def _row(item: Record, name: str, place: str, split: str, form: str) -> Row:
    shares = item["gt_bbox"]
    if any(value is None or not -0.001 <= value <= EDGE for value in shares):
        raise RowError("bad_type", f"{place}: 'gt_bbox' {shares} is not in shares of the sides; is this another release?")
    box = in_frame([value * 1000 for value in shares], (1000, 1000), "norm1000")
    if box is None:
        raise RowError("bad_value", f"{place}: box {shares} has no area")
    image = picture(field(item, "image", place), f"{split}/{name}")
    try:
        height, width = image_size(image.data)
    except MediaError as error:
        raise RowError("missing_picture", f"{place}: {error}") from error
    return element_row(
        form,
        id=name,
        task=NAME,
        image=image,
        instruction=field(item, "instruction", place),
        box=box,
        size=(width, height),
        meta={"split": split, "category": field(item, "task_type", place), "official": field(item, "id", place)},
    )


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("train",), options={"form": FORMS})

if __name__ == "__main__":
    main(DATASET)
