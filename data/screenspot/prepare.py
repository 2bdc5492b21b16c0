"""ScreenSpot (SeeClick, arXiv:2401.10935) to rows. Layout of the release: `screenspot_{mobile,desktop,web}.json`, `screenspot_imgs/`.

Each file is a list of elements. Boxes are [x, y, width, height] in pixels of the screenshot, whose size is read from its
file; they are cut to the screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.data.gui_rows import field, screen_size, target_row, usable
from vlmrl.data.prepare import Dataset, Row, Skipped, in_frame, main, official, read_json, xyxy
from vlmrl.errors import RowError

NAME = "screenspot"
IMAGES = "screenspot_imgs"
FILES = {"mobile": "screenspot_mobile.json", "desktop": "screenspot_desktop.json", "web": "screenspot_web.json"}
TYPES = ("text", "icon")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per element; `test` is the only split.

    Raises:
        DataError: a file or a screenshot is missing.
        RowError: an element is not as described.
    """
    for platform, name in FILES.items():
        for number, item in enumerate(read_json(official(root, name))):
            make = partial(element, item, root, platform, number, f"{name}, element {number}", split)
            yield usable(f"{NAME}-{platform}-{number:04d}", make)


def element(item: Any, root: Path, platform: str, number: int, place: str, split: str) -> Row:
    image = f"{IMAGES}/{field(item, 'img_filename', place)}"
    if field(item, "data_type", place) not in TYPES:
        raise RowError("bad_value", f"{place}: 'data_type' is {item['data_type']!r}; known: {', '.join(TYPES)}")
    size = screen_size(root, image)
    box = in_frame(xyxy(field(item, "bbox", place)), size, "rel1000")
    if box is None:
        raise RowError("bad_value", f"{place}: box {item['bbox']} has no area on a screen of {size}")
    return target_row(
        id=f"{NAME}-{platform}-{number:04d}",
        task=NAME,
        image=image,
        instruction=field(item, "instruction", place),
        box=box,
        size=size,
        meta={"split": split, "platform": platform, "element": item["data_type"], "data_source": field(item, "data_source", place)},
    )


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
