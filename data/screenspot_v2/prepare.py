"""ScreenSpot-v2 (OS-Atlas, arXiv:2410.23218) to rows. Layout of the release: `screenspot_{mobile,desktop,web}_v2.json` and the
unpacked `screenspotv2_image/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.extras.importers.prepare.gui_rows import FORMS
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main
from vlmrl.extras.importers.prepare.screenspot import screenspot_rows

NAME = "screenspot_v2"
IMAGES = "screenspotv2_image"
FILES = {"mobile": "screenspot_mobile_v2.json", "desktop": "screenspot_desktop_v2.json", "web": "screenspot_web_v2.json"}


def rows(root: Path, split: str, form: str = "action") -> Iterator[Row | Skipped]:
    """One row per element; `test` is the only split."""
    return screenspot_rows(root, split, dataset=NAME, images=IMAGES, files=FILES, form=form)


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("test",), options={"form": FORMS})

if __name__ == "__main__":
    main(DATASET)
