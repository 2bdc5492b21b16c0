"""Reads ScreenSpot's release layout, both versions: three JSON lists of elements, one per platform, and a folder of screenshots.

Boxes are [x, y, width, height] in pixels of the screenshot, whose size is read from its file; they are cut to the screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.gui_rows import element_row, field, screen_size, usable
from vlmrl.extras.importers.prepare.prepare import Row, Skipped, in_frame, official, read_json, xyxy

TYPES = ("text", "icon")


def screenspot_rows(
    root: Path, split: str, *, dataset: str, images: str, files: Mapping[str, str], form: str = "action"
) -> Iterator[Row | Skipped]:
    """One row per element.

    Args:
        dataset: task of the rows, and beginning of their ids.
        images: folder of the screenshots in `root`.
        files: platform -> its JSON file in `root`.
        form: of `gui_rows.FORMS`.

    Raises:
        DataError: a file or a screenshot is missing.
        RowError: an element is not as described.
    """
    for platform, name in files.items():
        for number, item in enumerate(read_json(official(root, name))):
            place, id = f"{name}, element {number}", f"{dataset}-{platform}-{number:04d}"
            meta = {"split": split, "platform": platform}
            make = partial(_element, item, root, place, form, id=id, dataset=dataset, images=images, meta=meta)
            yield usable(id, make)


def _element(item: Any, root: Path, place: str, form: str, *, id: str, dataset: str, images: str, meta: Mapping[str, Any]) -> Row:
    image = f"{images}/{field(item, 'img_filename', place)}"
    if field(item, "data_type", place) not in TYPES:
        raise RowError("bad_value", f"{place}: 'data_type' is {item['data_type']!r}; known: {', '.join(TYPES)}")
    size = screen_size(root, image)
    box = in_frame(xyxy(field(item, "bbox", place)), size, "norm1000")
    if box is None:
        raise RowError("bad_value", f"{place}: box {item['bbox']} has no area on a screen of {size}")
    return element_row(
        form,
        id=id,
        task=dataset,
        image=image,
        instruction=field(item, "instruction", place),
        box=box,
        size=size,
        meta={
            **meta,
            "category": f"{meta['platform']}_{item['data_type']}",
            "element": item["data_type"],
            "data_source": field(item, "data_source", place),
        },
    )
