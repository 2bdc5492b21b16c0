"""Sizes that rows state of their pictures, held against the files: a copy of a data set with resized pictures has all boxes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from vlmrl.answers.coordinates import Size
from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.fields import picture_size

SIZE_KEYS = (("width", "height"), ("image_width", "image_height"), ("img_width", "img_height"), ("width_list", "height_list"))
"""Columns that state the size of a picture, or lists of them for several; the last are InternVL's."""


def check_sizes(row: Mapping[str, Any], pictures: Sequence[str], options: ImportOptions, *, prefix: str = "") -> None:
    """Whether the sizes that a row states are those of its files (upright, EXIF orientation applied).

    A list states one size for each picture. One size beside several pictures must be that of one of them. Without the folder of the
    media nothing is compared, nor where the row shows no picture.

    Args:
        row: holds the columns; `prefix` stands before their names in messages.
        pictures: paths below `options.media_dir`.

    Raises:
        RowError: `size`, or what is wrong with a file (`missing`, `corrupt`, ...).
    """
    if options.media_dir is None or not pictures:
        return
    for names in SIZE_KEYS:
        sides = [_numbers(row.get(name)) for name in names]
        if sides[0] is None or sides[1] is None:
            continue
        if any(isinstance(row[name], list) for name in names) and len(sides[0]) == len(sides[1]) != len(pictures):
            raise RowError("size", f"'{prefix}{names[0]}' states {len(sides[0])} sizes, the row has {len(pictures)} picture(s)")
        stated = list(zip(sides[0], sides[1], strict=False))
        real = [picture_size(path, options) for path in pictures]
        if len(stated) == 1 < len(real) and stated[0] in real:
            continue
        for i, (said, size) in enumerate(zip(stated, real, strict=False)):
            if said != size:
                place = "/".join(f"{prefix}{name}" + (f"[{i}]" if isinstance(row[name], list) else "") for name in names)
                raise RowError("size", contradiction(f"'{place}'", said, pictures[i], size))


def contradiction(place: str, said: Size, path: str, size: Size) -> str:
    return (
        f"{place} says {said[0]:g}x{said[1]:g}, the file {path} (upright) is {size[0]:g}x{size[1]:g}; "
        "the row is for another version of the picture"
    )


def _numbers(value: object) -> list[float] | None:
    """A side, or sides, as numbers; None for what states none."""
    given = cast("list[object]", value) if isinstance(value, list) else [value]
    out: list[float] = []
    for one in given:
        text = one.strip() if isinstance(one, str) else one
        if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 8:
            out.append(float(text))  # cells of CSV files
        elif isinstance(text, int | float) and not isinstance(text, bool):
            out.append(float(text))
        else:
            return None
    return out or None
