"""Gold answers of other trainers' rows: what an answer type is given to read them, and what it makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from vlmrl.answers.coordinates import plain
from vlmrl.errors import RowError


@dataclass(frozen=True, kw_only=True, slots=True)
class Gold:
    """The gold answer of another trainer's row in our schema."""

    answer: str
    gt: dict[str, Any]
    options: list[str] | None = None
    """The row's options as the question shows them, where the type changes them (letters)."""
    framed: bool = False
    """Whether coordinates were converted, so that `meta.frame` must say to what."""


class ForeignRow(Protocol):
    """What another trainer's row and the recipe's source say around a gold answer (`importers.gold`)."""

    @property
    def options(self) -> Sequence[str]: ...

    @property
    def images(self) -> int: ...

    @property
    def videos(self) -> int: ...

    def coordinates(self, values: object, place: str) -> list[Any]:
        """Convert to [x, y] or [x1, y1, x2, y2] in the frame that the source converts to, rounded to two decimals.

        Raises:
            RowError: they are no coordinates, or their frame is not stated or contradicts them.
        """
        ...

    def time(self, value: object) -> float:
        """Convert to seconds. Raises RowError as `answers.coordinates.convert_time`."""
        ...

    def span(self, values: object) -> list[float]:
        """Convert to [start, end] in seconds. Raises RowError as `answers.coordinates.convert_span`."""
        ...


def text_of(value: object) -> str:
    """Read a gold answer as text: a text that is not empty, or a number.

    Raises:
        RowError: `answer`.
    """
    if isinstance(value, list):
        raise RowError("answer", "the gold answer is a list; several right answers are read for 'exact_text' and 'short_text' only")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError("answer", f"the gold answer must be text or a number here, got {type(value).__name__} {str(value)[:60]}")
    text = str(plain(value)) if isinstance(value, int | float) else value.strip()
    if not text:
        raise RowError("answer", "the gold answer is empty")
    return text


def texts_of(value: object) -> list[str]:
    """Read a gold answer as text, or a list of them that are all right, each once; the first stands for them.

    Returns:
        At least one text, in the order given.

    Raises:
        RowError: `answer`.
    """
    if not isinstance(value, list):
        return [text_of(value)]
    if not value:
        raise RowError("answer", "the gold answer is an empty list")
    return list(dict.fromkeys(text_of(one) for one in cast("list[object]", value)))


_FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL | re.IGNORECASE)


def json_of(value: object) -> object:
    """Read a gold answer that may be given as JSON text, also between the fences of Markdown that Qwen-VL writes.

    Returns:
        The value of the JSON; what is not text, as it is.

    Raises:
        RowError: `answer`: text that is no JSON.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    fenced = _FENCE.fullmatch(text)
    text = text if fenced is None else fenced.group(1)
    # The count of brackets bounds the depth of what the JSON reader has to go through.
    if text.count("[") + text.count("{") > 512:
        raise RowError("answer", "the gold answer has more than 512 brackets")
    try:
        return json.loads(text)
    except ValueError as error:
        raise RowError("answer", f"the gold answer {text[:80]!r} is not JSON: {str(error)[:80]}") from error


BOX_KEYS = ("boxes", "bbox", "box", "bbox_2d")


def lists_of(given: object, keys: Sequence[str]) -> list[object]:
    """Find the lists of numbers of `{"boxes": ...}`, of a list of lists, of `[{"bbox_2d": ...}]`, or of one list of numbers.

    Returns:
        The lists in their order, at least one. What each holds is not looked at.

    Raises:
        RowError: `missing_key` or `answer`: there are none.
    """
    if isinstance(given, Mapping):
        key = next((key for key in keys if given.get(key) is not None), None)
        if key is None:
            raise RowError("missing_key", f"the gold answer has the keys {sorted(map(str, given))} and none of {', '.join(keys)}")
        return lists_of(given[key], keys)
    if not isinstance(given, list) or not given:
        raise RowError("answer", f"the gold answer {str(given)[:60]} holds no list of numbers")
    # lists of numbers; objects with a box each (Qwen-VL's `bbox_2d`); else one flat list of numbers
    if isinstance(given[0], list):
        return given
    if isinstance(given[0], Mapping):
        return [box for item in given for box in lists_of(item, keys)]
    return [given]


def parts_of(value: object, keys: Sequence[str], name: str) -> dict[str, Any]:
    """Read a gold answer that is one JSON object with some of `keys`, null ones left out.

    Returns:
        Key -> value as it was given.

    Raises:
        RowError: `answer`: it is not, or has other keys.
    """
    given = json_of(value)
    if not isinstance(given, Mapping):
        raise RowError("answer", f"the gold answer {str(given)[:60]} is not a JSON object, as '{name}' needs it")
    parts = {str(key): part for key, part in given.items() if part is not None}
    unknown = sorted(set(parts) - set(keys))
    if unknown:
        raise RowError("answer", f"the gold answer has the key '{unknown[0][:40]}'; '{name}' has {', '.join(keys)}")
    return parts


def require_video(row: ForeignRow, name: str) -> None:
    """Check that the row shows one video and nothing else. Raises RowError (`answer`)."""
    if (row.videos, row.images) != (1, 0):
        raise RowError("answer", f"'{name}' is about one video, the row has {row.images} image(s) and {row.videos} video(s)")


def require_parts(parts: Mapping[str, Any], keys: Sequence[str], name: str) -> None:
    """Check that all keys are there. Raises RowError (`missing_key`)."""
    missing = [key for key in keys if key not in parts]
    if missing:
        raise RowError("missing_key", f"the gold answer has no '{missing[0]}', which '{name}' needs")


def box_of(given: object, row: ForeignRow, place: str) -> list[Any]:
    """Convert a box to [x1, y1, x2, y2] in the frame that is converted to. Raises RowError."""
    if not isinstance(given, list) or len(given) != 4:
        raise RowError("answer", f"{place}: a box is [x1, y1, x2, y2], got {str(given)[:60]}")
    return row.coordinates(given, place)


def point_of(given: object, row: ForeignRow, place: str) -> list[Any]:
    """Convert a point to [x, y] in the frame that is converted to. Raises RowError."""
    if not isinstance(given, list) or len(given) != 2:
        raise RowError("answer", f"{place}: a point is [x, y], got {str(given)[:60]}")
    return row.coordinates(given, place)


def track_of(given: object, row: ForeignRow) -> dict[str, Any]:
    """Convert {"<frame>": box}; that frames are numbers, each named once, is for the schema to check.

    Returns:
        Frame as text -> [x1, y1, x2, y2] in the frame of coordinates that is converted to.

    Raises:
        RowError: `answer`: no object of boxes; or as `ForeignRow.coordinates`.
    """
    if not isinstance(given, Mapping) or not given:
        raise RowError("answer", f"'boxes' must be an object of frames, like {{\"1\": [x1, y1, x2, y2]}}, got {str(given)[:60]}")
    return {str(frame): box_of(box, row, f"boxes.{frame}") for frame, box in given.items()}
