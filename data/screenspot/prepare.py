"""ScreenSpot (SeeClick, arXiv:2401.10935) to rows. Layout of the release: `screenspot_{mobile,desktop,web}.json`, `screenspot_imgs/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.extras.importers.prepare.gui_rows import FORMS
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main
from vlmrl.extras.importers.prepare.screenspot import screenspot_rows

NAME = "screenspot"
IMAGES = "screenspot_imgs"
FILES = {"mobile": "screenspot_mobile.json", "desktop": "screenspot_desktop.json", "web": "screenspot_web.json"}


def rows(root: Path, split: str, form: str = "action") -> Iterator[Row | Skipped]:
    """One row per element; `test` is the only split."""
    return screenspot_rows(root, split, dataset=NAME, images=IMAGES, files=FILES, form=form)


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("test",), options={"form": FORMS})

if __name__ == "__main__":
    main(DATASET)
