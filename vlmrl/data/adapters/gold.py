"""The gold answer of a foreign row as `answer` and `gt` of our schema, by answer type.

Whatever comes out here must earn the full reward when it is read back by the parser that training uses: numbers are therefore
checked to be one number, letters to name an option, and coordinates and times are rounded before both forms are made from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmrl.answers.coordinates import DIGITS, Size, convert_box, convert_point, convert_span, convert_time, plain
from vlmrl.data.adapters.base import ANSWER_TYPES, Found, ImportOptions, picture_size
from vlmrl.errors import RowError

_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:)]?")
_LETTER_AND_TEXT = re.compile(r"\(?([A-Z])(?:\)|[.:])\s*(.+)", re.DOTALL)
_OPTION = re.compile(r"\s*\(?([A-Za-z])(?:\)|[.:])\s*(.*)", re.DOTALL)
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,15})?%?")
_TIME = r"([\d:.]+(?:\s?(?:seconds?|secs?|s))?)"
_SPAN = re.compile(rf"(?:from\s+)?{_TIME}\s*(?:to|and|-|–|—)\s*{_TIME}", re.IGNORECASE)
_POINT_KEYS = ("points", "point", "point_2d")
_BOX_KEYS = ("boxes", "bbox", "box", "bbox_2d")


VISUAL = {"tracking": "track", "spatio_temporal": "tube", "segmentation": "segmentation"}
"""Answer types whose gold answer is one JSON object -> the key of `gt` that holds it."""
_PARTS = {
    "tracking": ("boxes",),
    "spatio_temporal": ("time", "boxes"),
    "segmentation": ("time", "boxes", "positive_points", "negative_points"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gold:
    """`answer`, `gt` and `options` of a row, and what its `meta` says of the frame."""

    answer: str
    gt: dict[str, Any]
    options: list[str]
    framed: bool = False
    """Whether coordinates were converted, so that `meta.frame` must say to what."""


def gold(value: object, answer_type: str, found: Found, options: ImportOptions, first_image: str | None) -> Gold:
    """Read a gold answer (text already unwrapped) as `answer_type`.

    Raises:
        RowError: `answer`, `answer_type`, or those of `answers.coordinates`.
    """
    if answer_type == "choice":
        letter, texts = _choice(_text(value), found.options)
        return Gold(answer=letter, gt={}, options=texts)
    if answer_type in ("number", "regression"):
        text, number = _number(value)
        return Gold(answer=text, gt={"number": plain(number)}, options=found.options)
    if answer_type in ("math", "short_text", "exact_text"):
        return Gold(answer=_text(value), gt={}, options=found.options)
    if answer_type == "time_span":
        span = convert_span(_span(value), unit=options.time_unit, fps=options.time_fps)
        return Gold(answer=f"{span[0]:.2f} to {span[1]:.2f}", gt={"time": span}, options=found.options)
    if answer_type in ("bbox", "point"):
        return _place(value, answer_type, found, options, first_image)
    if answer_type in VISUAL:
        return _visual(value, answer_type, found, options, first_image)
    raise RowError("answer_type", f"answer type '{answer_type}' cannot be made from rows of this shape; known: {', '.join(ANSWER_TYPES)}")


def lettered(options: list[str]) -> list[str]:
    """Options with letters in front: as they are if they have A, B, ... already, else with `A. `, `B. `, ...

    Raises:
        RowError: `options`: more than 26, or letters that are not A, B, ... in order.
    """
    if len(options) > 26:
        raise RowError("options", f"{len(options)} options; letters go to 26")
    letters = [chr(ord("A") + i) for i in range(len(options))]
    have = [match.group(1).upper() if (match := _OPTION.fullmatch(option)) else None for option in options]
    if have == letters:
        return options
    if have.count(None) == 0 and len(have) > 1:
        raise RowError("options", f"the options are lettered {', '.join(map(str, have))}, not A, B, ... in order")
    return [f"{letter}. {option}" for letter, option in zip(letters, options, strict=True)]


def coordinates_text(values: object, found: Found, options: ImportOptions, first_image: str | None) -> str:
    """A box or point within a question, as `[x1, y1, x2, y2]` or `[x, y]` in the frame of the row's answers."""
    return json.dumps(_converted(values, found, options, first_image, "coordinates in the question"))


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError("answer", f"the gold answer must be text or a number here, got {type(value).__name__} {str(value)[:60]}")
    text = str(plain(value)) if isinstance(value, int | float) else value.strip()
    if not text:
        raise RowError("answer", "the gold answer is empty")
    return text


def _choice(answer: str, options: list[str]) -> tuple[str, list[str]]:
    """The letter, and the options with letters."""
    texts = lettered(options)
    known = [chr(ord("A") + i) for i in range(len(texts))]
    bare = [match.group(2).strip() if (match := _OPTION.fullmatch(text)) else text for text in texts]
    same = [letter for letter, text in zip(known, bare, strict=True) if text.casefold() == answer.casefold()]
    letter = _LETTER.fullmatch(answer)
    with_text = _LETTER_AND_TEXT.fullmatch(answer)
    if letter is not None and (not known or letter.group(1).upper() in known):
        found = letter.group(1).upper()
        if same and same != [found]:
            raise RowError("answer", f"the gold answer {answer!r} is the letter of one option and the text of another")
    elif len(same) == 1:
        found = same[0]
    elif with_text is not None and (not known or with_text.group(1) in known):
        found = with_text.group(1)
        if known and bare[known.index(found)].casefold() != with_text.group(2).strip().casefold():
            raise RowError("answer", f"the gold answer {answer[:80]!r} has the letter of one option and another text")
    elif len(same) > 1:
        raise RowError("answer", f"the gold answer {answer[:80]!r} is the text of several options: {', '.join(same)}")
    else:
        shown = f"one of the options {', '.join(known)}" if known else "a letter, and the row has no options"
        raise RowError("answer", f"the gold answer {answer[:80]!r} is not {shown}")
    return found, texts


def _number(value: object) -> tuple[str, float]:
    text = _text(value)
    if not _NUMBER.fullmatch(text):
        raise RowError("answer", f"the gold answer {text[:80]!r} is not one number; without unit or formula, like 12.5 or 1,200")
    return text, float(text.replace(",", "").rstrip("%"))


def _span(value: object) -> object:
    """[start, end] in whatever form the two times have."""
    if isinstance(value, str):
        text = value.strip()
        if text[:1] in ("{", "["):
            return _span(_json(text))
        match = _SPAN.fullmatch(text) if len(text) <= 200 else None
        if match is None:
            known = "'a to b', [a, b], {\"time\": [a, b]}"
            raise RowError("answer", f"the gold answer {text[:80]!r} is not a time span; known forms: {known}")
        return [match.group(1), match.group(2)]
    if isinstance(value, Mapping):
        if value.get("time") is None:
            raise RowError("missing_key", f"the gold answer has the keys {sorted(value)} and not 'time'")
        return _span(value["time"])
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        return value[0]
    return value


def _place(value: object, answer_type: str, found: Found, options: ImportOptions, first_image: str | None) -> Gold:
    given = _json(value.strip()) if isinstance(value, str) else value
    if answer_type == "point":
        return _points(_listed(given, (*_POINT_KEYS, *_BOX_KEYS)), found, options, first_image)
    boxes = [_converted(box, found, options, first_image, f"box {i}") for i, box in enumerate(_listed(given, _BOX_KEYS))]
    if any(len(box) != 4 for box in boxes):
        raise RowError("answer", f"a box has four numbers, got {boxes}")
    return Gold(answer=json.dumps({"boxes": boxes}), gt={"boxes": boxes}, options=found.options, framed=True)


def _points(items: list[object], found: Found, options: ImportOptions, first_image: str | None) -> Gold:
    """True points; or true boxes that a point must lie in, of which the first one's centre is the answer."""
    read = [_converted(item, found, options, first_image, f"point {i}") for i, item in enumerate(items)]
    if len({len(item) for item in read}) != 1:
        raise RowError("answer", f"the gold answer holds points and boxes, which must not be mixed: {read}")
    if len(read[0]) == 4:
        x1, y1, x2, y2 = read[0]
        centre = [plain(round((x1 + x2) / 2, DIGITS)), plain(round((y1 + y2) / 2, DIGITS))]
        return Gold(answer=json.dumps(centre), gt={"boxes": read}, options=found.options, framed=True)
    answer = json.dumps(read[0] if len(read) == 1 else {"points": read})
    return Gold(answer=answer, gt={"points": read}, options=found.options, framed=True)


def _visual(value: object, answer_type: str, found: Found, options: ImportOptions, first_image: str | None) -> Gold:
    """Boxes by frame, with a time span for tubes; or a box with points, of a video with its time: the objects of arXiv:2512.03043."""
    given = _json(value.strip()) if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise RowError("answer", f"the gold answer {str(given)[:60]} is not a JSON object, as '{answer_type}' needs it")
    parts = {str(key): part for key, part in given.items() if part is not None}
    unknown = sorted(set(parts) - set(_PARTS[answer_type]))
    if unknown:
        raise RowError("answer", f"the gold answer has the key '{unknown[0][:40]}'; '{answer_type}' has {', '.join(_PARTS[answer_type])}")
    videos, images = len(found.videos), len(found.images)
    if answer_type != "segmentation" and (videos, images) != (1, 0):
        raise RowError("answer", f"'{answer_type}' is about one video, the row has {images} image(s) and {videos} video(s)")
    if videos + images != 1:
        raise RowError("answer", f"'segmentation' is about one picture or video, the row has {images} image(s) and {videos} video(s)")
    if (answer_type == "segmentation" and not videos) and "time" in parts:
        raise RowError("answer", "the gold answer has a 'time', but the row shows a picture")
    missing = [key for key in _PARTS[answer_type] if key not in parts and (key != "time" or videos)]
    if missing:
        raise RowError("missing_key", f"the gold answer has no '{missing[0]}', which '{answer_type}' needs")
    out: dict[str, Any] = {}
    if answer_type == "segmentation":
        if "time" in parts:
            out["time"] = plain(convert_time(parts["time"], unit=options.time_unit, fps=options.time_fps))
        out["boxes"] = _corners(parts["boxes"], found, options, first_image, "boxes")
        for key in ("positive_points", "negative_points"):
            out[key] = [_pair(item, found, options, first_image, f"{key}[{i}]") for i, item in enumerate(_items(parts[key], key))]
        true: dict[str, Any] = out
    else:
        boxes = _by_frame(parts["boxes"], found, options, first_image)
        if answer_type == "spatio_temporal":
            out["time"] = convert_span(parts["time"], unit=options.time_unit, fps=options.time_fps)
        out["boxes"] = boxes
        true = boxes if answer_type == "tracking" else out
    return Gold(answer=json.dumps(out), gt={VISUAL[answer_type]: true}, options=found.options, framed=True)


def _by_frame(given: object, found: Found, options: ImportOptions, first_image: str | None) -> dict[str, Any]:
    """{"<frame>": box}; that frames are numbers, each named once, is for the schema to check."""
    if not isinstance(given, Mapping) or not given:
        raise RowError("answer", f"'boxes' must be an object of frames, like {{\"1\": [x1, y1, x2, y2]}}, got {str(given)[:60]}")
    return {str(frame): _corners(box, found, options, first_image, f"boxes.{frame}") for frame, box in given.items()}


def _corners(given: object, found: Found, options: ImportOptions, first_image: str | None, place: str) -> list[Any]:
    if not isinstance(given, list) or len(given) != 4:
        raise RowError("answer", f"{place}: a box is [x1, y1, x2, y2], got {str(given)[:60]}")
    return _converted(given, found, options, first_image, place)


def _pair(given: object, found: Found, options: ImportOptions, first_image: str | None, place: str) -> list[Any]:
    if not isinstance(given, list) or len(given) != 2:
        raise RowError("answer", f"{place}: a point is [x, y], got {str(given)[:60]}")
    return _converted(given, found, options, first_image, place)


def _items(given: object, key: str) -> list[Any]:
    if not isinstance(given, list):
        raise RowError("answer", f"'{key}' must be a list of points, got {str(given)[:60]}")
    return given


def _listed(given: object, keys: tuple[str, ...]) -> list[object]:
    """The lists of numbers of `{"boxes": ...}`, of a list of lists, of `[{"bbox_2d": ...}]`, or of one list of numbers."""
    if isinstance(given, Mapping):
        key = next((key for key in keys if given.get(key) is not None), None)
        if key is None:
            raise RowError("missing_key", f"the gold answer has the keys {sorted(map(str, given))} and none of {', '.join(keys)}")
        return _listed(given[key], keys)
    if not isinstance(given, list) or not given:
        raise RowError("answer", f"the gold answer {str(given)[:60]} holds no list of numbers")
    if isinstance(given[0], list):
        return given
    if isinstance(given[0], Mapping):
        return [box for item in given for box in _listed(item, keys)]
    return [given]


def _converted(values: object, found: Found, options: ImportOptions, first_image: str | None, place: str) -> list[Any]:
    if found.frame is not None and options.frame not in (None, found.frame):
        raise RowError("frame", f"{place}: the row says '{found.frame}', the source's 'frame' is '{options.frame}'")
    frame = found.frame or options.frame
    size = size_of(found, options, first_image, place) if "pixel" in (frame, options.to_frame) else None
    if isinstance(values, list) and len(values) == 2:
        out = convert_point(values, frame=frame, axis=options.axis, target=options.to_frame, size=size)
    else:
        out = convert_box(values, frame=frame, axis=options.axis, target=options.to_frame, size=size, place=place)
    return [plain(value) for value in out]


def size_of(found: Found, options: ImportOptions, first_image: str | None, place: str) -> Size:
    """Size of the one picture that the numbers are in. What the row says of it must be what the file says.

    Raises:
        RowError: `frame`, or what is wrong with the file.
    """
    if found.videos or len(found.images) != 1 or first_image is None:
        have = f"{len(found.images)} and {len(found.videos)} video(s)"
        raise RowError("frame", f"{place}: pixels need exactly one picture, the row has {have}")
    if options.media_dir is None and found.size is not None:
        return found.size
    size = picture_size(first_image, options)
    if found.size is not None and found.size != size:
        raise RowError(
            "frame",
            f"{place}: the row says that its picture is {found.size[0]:g}x{found.size[1]:g}, the file (upright) is "
            f"{size[0]:g}x{size[1]:g}; the numbers are for another version of the picture",
        )
    return size


def _json(text: str) -> object:
    # The count of brackets bounds the depth of what the JSON reader has to go through.
    if text.count("[") + text.count("{") > 512:
        raise RowError("answer", "the gold answer has more than 512 brackets")
    try:
        return json.loads(text)
    except ValueError as error:
        raise RowError("answer", f"the gold answer {text[:80]!r} is not JSON: {str(error)[:80]}") from error
