"""RefCOCOg, partition 'umd': one row per expression; REFER's layout is read by `vlmrl.extras.importers.prepare.refcoco`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main
from vlmrl.extras.importers.prepare.refcoco import FRAMES, refcoco_rows


def rows(root: Path, split: str, frame: str) -> Iterator[Row | Skipped]:
    """Boxes (x1, y1, x2, y2) in `frame`."""
    return refcoco_rows(root, split, dataset="refcocog", partition="umd", frame=frame)


DATASET = Dataset(
    folder=Path(__file__).parent,
    rows=rows,
    splits=("train", "val", "test"),
    unit="ref_id",
    options={"frame": FRAMES},
)

if __name__ == "__main__":
    main(DATASET)
