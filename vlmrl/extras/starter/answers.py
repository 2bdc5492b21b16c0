"""Finds what the answers of rows are: letters, numbers, mathematics, texts, boxes, points or spans of time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.coordinates import convert_span
from vlmrl.answers.foreign import BOX_KEYS, json_of, lists_of
from vlmrl.errors import ConfigError, RowError
from vlmrl.extras.starter.look import MOST
from vlmrl.extras.starter.tasks import KINDS
from vlmrl.types import Sample

WORDS = 6
"""Words of the median answer from which a text is paid by the words that it shares, since it is never given as a whole."""
_POINTS = ("points", "point", "point_2d")
_LETTER = re.compile(r"\(?[A-Za-z]\)?[.:)]?")
_LETTERED = re.compile(r"^\s*\(?A[.:)].*^\s*\(?B[.:)]|\(A\).*\(B\)|\bA[.:)] .*\bB[.:)] ", re.S | re.M)
_MATHS = re.compile(
    r"\\[A-Za-z]+|[\^=√π°²³≤≥∞]|^\$.*\$$|^[-+]?[\d.,]+\s*[/:*+\-]\s*[\d.,()a-z]+$|^[-+]?[\d.,]+\s?(?:[a-zA-Z]{1,3}|%)[²³]?$|^-?\d*[a-z]\s*[-+]\s*\d+$"
)
_CLICKS = re.compile(r"\b(?:click|tap|press|select|open|choose|toggle|go to|navigate|button|icon|menu)\b", re.IGNORECASE)
_BOXES = re.compile(r"\b(?:bounding box|box|boxes|locate|where (?:is|are)|detect|find|region|outline|ground)\b", re.IGNORECASE)
NAMED = {
    "letter": "single letters",
    "number": "numbers",
    "math": "expressions",
    "text": "texts",
    "texts": "lists of texts",
    "box": "boxes",
    "point": "points",
    "span": "spans of time",
    "action": "actions",
    "truth": "true or false",
    "object": "JSON objects",
}
"""What a gold answer is -> in a message."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the answers of rows are."""

    kind: str
    """Key of `tasks.KINDS`."""
    said: str
    """The finding, as a comment."""

    @property
    def answer_type(self) -> str | None:
        return KINDS[self.kind].answer_type


@dataclass(frozen=True)
class _Seconds:
    """What `time_span` asks of a row: the forms of a span are told by its own reader."""

    def span(self, values: object) -> list[float]:
        return convert_span(values, unit="s")


def answers_of(values: Sequence[tuple[Sample, Any]], *, screens: bool, clicks: bool | None = None) -> Answers:
    """What the answers are.

    Args:
        values: rows with their gold answers as they stand.
        screens: whether the pictures are called screens.
        clicks: whether a box is to be hit by a point (True) or answered (False); None: as the rows look.

    Raises:
        ConfigError: they are of several kinds, or of one that nothing here reads, with what decides it.
    """
    kinds = [form(value, sample) for sample, value in values]
    count, total = Counter(kinds), len(kinds)
    most, times = count.most_common(1)[0]
    whole = set(count) if times < (1 - MOST) * total else {most}
    said = f"{sum(count[one] for one in whole)} of {total} answers are " + " or ".join(NAMED[one] for one in NAMED if one in whole)
    if sum(bool(sample.meta.get("options")) for sample, _ in values) >= (1 - MOST) * total:
        _no_index(values, said)
        return Answers(kind="choice", said=f"the rows have options; {said}")
    if whole == {"letter"}:
        return _letters(values, said)
    if whole == {"box"}:
        return _places(values, said, screens=screens, clicks=clicks)
    if whole <= {"math", "number"}:
        return Answers(kind="number" if whole == {"number"} else "math", said=said)
    if whole <= {"text", "texts", "number", "math", "letter"} and whole & {"text", "texts"}:
        return _texts(values, kinds, said)
    if whole == {"point"}:
        return Answers(kind="point", said=said)
    if whole == {"span"}:
        return Answers(kind="time_span", said=said)
    firsts = {kind: next(sample.source for (sample, _), one in zip(values, kinds, strict=True) if one == kind) for kind in count}
    if whole <= {"action", "object", "truth"}:
        raise ConfigError(
            f"{said} (first: {firsts[most]}), which are not read from rows of other shapes; write them in our own schema (docs/data.md; "
            "vlmrl new NAME --task gui shows a row of actions), or as texts"
        )
    listed = ", ".join(f"{number} are {NAMED[kind]} (first: {firsts[kind]})" for kind, number in count.most_common())
    raise ConfigError(
        f"the answers are of several kinds: {listed}; split the file by kind, write 'answer_type' into each row, or say how all of "
        f"them are read: --answer-type {' or --answer-type '.join(_ways(whole))}"
    )


def form(value: Any, sample: Sample) -> str:
    """What one gold answer is: a key of `NAMED`."""
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    if not isinstance(value, str):
        return _structure(value, sample)
    text = value.strip()
    if text[:1] in ("[", "{", "`"):
        try:
            return _structure(json_of(text), sample)
        except RowError:
            return "math" if _MATHS.search(text) else "text"
    if _LETTER.fullmatch(text):
        return "letter"
    if _reads("number", text):
        return "number"
    if any(ref.kind == "video" for ref in sample.media) and _reads("time_span", text):
        return "span"
    return "math" if _MATHS.search(text) else "text"


def _structure(value: Any, sample: Sample) -> str:
    """What a list or an object is."""
    if isinstance(value, Mapping):
        if {"type", "action", "action_type"} & set(value) and not set(BOX_KEYS) & set(value):
            return "action"
        if "time" in value:
            return "span" if _reads("time_span", value) else "object"
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return "texts"
    if not isinstance(value, list | Mapping):
        return form(value, sample)
    try:
        lists = lists_of(value, (*_POINTS, *BOX_KEYS))
    except RowError:
        return "object"
    numbers = all(isinstance(one, list) and all(type(part) in (int, float) for part in one) for one in lists)
    lengths = {len(one) for one in lists if isinstance(one, list)}
    if not numbers or lengths not in ({2}, {4}):
        return "object"
    kinds = {ref.kind for ref in sample.media}
    return "box" if lengths == {4} else "span" if kinds == {"video"} else "point"


def _reads(answer_type: str, value: Any) -> bool:
    """Whether the answer type itself reads this."""
    row: Any = _Seconds()
    try:
        ANSWER_TYPES[answer_type].convert(value, row)
    except RowError:
        return False
    return True


def _no_index(values: Sequence[tuple[Sample, Any]], said: str) -> None:
    """
    Raises:
        ConfigError: the answers count the options.
    """
    numbers = [int(str(value)) if str(value).strip().isdecimal() else None for _, value in values]
    listed = [[str(option).casefold() for option in sample.meta.get("options") or []] for sample, _ in values]
    texts = any(any(str(value).casefold() in option for option in options) for (_, value), options in zip(values, listed, strict=True))
    if not texts and all(number is not None and number <= len(options) for number, options in zip(numbers, listed, strict=True)):
        raise ConfigError(f"{said} and seem to count the options; write the letter or the text of the option in their place")


def _letters(values: Sequence[tuple[Sample, Any]], said: str) -> Answers:
    lettered = sum(_LETTERED.search(sample.question) is not None for sample, _ in values)
    if lettered >= (1 - MOST) * len(values):
        return Answers(kind="choice", said=f"{said}, and {lettered} of {len(values)} questions list options with letters")
    raise ConfigError(
        f"{said}, and {len(values) - lettered} of {len(values)} questions list no options; say where these are "
        "(--columns '{prompt: ..., answer: ..., options: ...}', or '[A, B, C, D]' for a column each), or --answer-type exact_text"
    )


def _places(values: Sequence[tuple[Sample, Any]], said: str, *, screens: bool, clicks: bool | None) -> Answers:
    """Boxes that are to be answered, or hit by a point."""
    half = len(values) / 2
    asks = {name: sum(pattern.search(sample.question) is not None for sample, _ in values) for name, pattern in _ASKS.items()}
    if clicks is None:
        click, box = asks["click"] > half or screens, asks["box"] > half
        if click and box:
            raise ConfigError(
                f"{said}: is a box to be answered, or a point inside it? {asks['click']} questions are about clicks, "
                f"{asks['box']} about boxes{', and the pictures are screens' if screens else ''}; say which: --task boxes or --task clicks"
            )
        clicks = click
    why = f"{asks['click']} questions ask for clicks" if asks["click"] > half else "the pictures are screens" if screens else "as asked for"
    if clicks:
        return Answers(kind="click", said=f"{said} to click on ({why}): the answer is a point inside; --task boxes asks for the box")
    return Answers(kind="bbox", said=f"{said}; --task clicks asks for a point inside")


_ASKS = {"click": _CLICKS, "box": _BOXES}


def _texts(values: Sequence[tuple[Sample, Any]], kinds: Sequence[str], said: str) -> Answers:
    lengths = [len(str(value).split()) for (_, value), kind in zip(values, kinds, strict=True) if kind == "text"]
    words = median(lengths) if lengths else 1
    if words > WORDS:
        return Answers(kind="open_text", said=f"{said}, in the median of {words:g} words: too long to be given word for word")
    return Answers(kind="exact_text", said=f"{said}, in the median of {words:g} word{'s' if words != 1 else ''}")


def _ways(kinds: set[str]) -> list[str]:
    """Answer types that read at least one of these."""
    ways = {"letter": "choice", "number": "number", "math": "math", "box": "bbox", "point": "point", "span": "time_span"}
    return [*dict.fromkeys(ways[kind] for kind in ways if kind in kinds), "exact_text"]
