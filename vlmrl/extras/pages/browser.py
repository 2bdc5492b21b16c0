"""Sample browser: one card per question with the pixels that the model saw, gold and predicted answers on them, and the texts.

Everything is prepared here as plain values for the templates; lengths on pictures are in pixels of the screen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import parse
from vlmrl.evals.page import TRUTH_COLOUR
from vlmrl.evals.score.measures import main_score
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.table import visible
from vlmrl.extras.pages.charts import COLOURS, nice_ticks, number
from vlmrl.extras.pages.overlay import OBJECTS, Mark, MarkedFrames, Marks, Span, Target, answer_marks, gold_marks
from vlmrl.extras.pages.prompts import Written
from vlmrl.extras.pages.runfiles import Frames
from vlmrl.extras.pages.step_table import StepTable, step_table

FRAME_HEIGHT, MAX_FRAME_HEIGHT = 84, 150
"""Pixels of the screen: smaller frames of a video are enlarged to the first, larger ones shrunk to the second."""
MARKED_HEIGHT, MAX_MARKED_HEIGHT = 130, 240
"""The same for a video with marks on its frames."""
STILL_HEIGHT, MAX_STILL_HEIGHT, MAX_STILL_WIDTH = 280, 460, 620
"""The same for a single picture."""
FIRST_COLOUR = "#8b949c"
"""Of the model that the others are compared with."""
STATUS = {"no_tag": "no answer tag", "truncated": "cut off", "unparsable": "not readable"}
TAGS = {
    "better": "last model better than the first",
    "worse": "last model worse than the first",
    "failed": "last model scores 0",
    "low": "last model below 0.5",
    "unreadable": "an answer cannot be read",
    "cut": "an answer was cut off",
    "thought": "last model thinks",
    "skipped": "last model does not think",
    "undrawn": "something is not drawn, or reaches outside",
}
"""Names that filters have in the address of a page (`#filter=worse,cut`), and what they mean."""
_TAGGED = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)|<answer>.*?(?:</answer>|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A span on a time axis, in percent of its length. `width` is 0 where nothing of it is on the axis."""

    left: float
    width: float
    strength: float = 1.0
    """Opacity."""


@dataclass(frozen=True, kw_only=True)
class OverlayShape:
    """One shape on a frame, as SVG path data in pixels of the screen."""

    path: str
    filled: bool = False
    """An area and no line."""
    dot: tuple[float, float] | None = None
    """A point; it has no path."""
    odd: bool = False
    """What was said lies elsewhere: drawn dashed."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The shapes of one answer on one frame. Layer 0 is the truth, the others are models in their order, from 1."""

    number: int
    colour: str
    shapes: tuple[OverlayShape, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one model answered to one question."""

    model: str
    """With the number of the answer, where there are several."""
    layer: int
    colour: str
    status: str
    span: str
    """As text, a time span in seconds; empty without a readable one."""
    bars: tuple[Bar, ...]
    """Empty for answers that say nothing of times."""
    score: float
    tokens: int | None
    """None where the program that asked did not count them."""
    pieces: tuple[tuple[str, str], ...]
    """(`thought`, `answer` or empty, text): the whole text, in order."""
    problems: tuple[str, ...]
    """What of it is not drawn, and why."""

    @property
    def says(self) -> str:
        """In words, what came of reading it; empty where it was read."""
        return "" if self.status == "ok" else STATUS.get(self.status, self.status)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One picture of the strip. `offset` is its place in the strip in percent, as CSS counts background positions."""

    label: str
    offset: float
    inside: bool
    """Within a true span."""
    layers: tuple[Layer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The pixels of a card."""

    frames: tuple[Frame, ...]
    width: float
    height: float
    """Of a frame."""
    data: str
    """PNG in base64."""
    smooth: bool
    """Shrunk and not enlarged."""
    still: bool
    pixels: str
    """What the model saw, in words."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt as the model saw it."""

    models: str
    """Who was asked so; empty where all were."""
    pieces: Written


@dataclass(frozen=True, kw_only=True)
class Question:
    """One card of the browser."""

    index: int
    id: str
    task: str
    category: str
    text: str
    truth: str
    axis: tuple[tuple[float, str], ...]
    """(percent, label); empty where there is no time."""
    gold_bars: tuple[Bar, ...]
    strip: Strip | None
    """None where no pixels were kept."""
    answers: tuple[Answer, ...]
    problems: tuple[str, ...]
    """What of the truth is not drawn, and why."""
    prompts: tuple[Asked, ...] = ()
    steps: StepTable | None = None
    """Of the thoughts, where the row states true ones."""
    tags: tuple[str, ...] = ()
    """For the filters: names of `TAGS`."""
    score: float = 0.0
    """Mean score of the last model."""
    change: float = 0.0
    """Since the first model."""


def model_colours(names: Sequence[str]) -> dict[str, str]:
    """The first model in grey, those after it in the colours of the curves, without the one of the truth."""
    colours = [colour for colour in COLOURS if colour != TRUTH_COLOUR]
    return {name: (FIRST_COLOUR if n == 0 else colours[(n - 1) % len(colours)]) for n, name in enumerate(names)}


def by_sample(records: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, list[Record]]]:
    """Sample -> model -> its answers in the order of their numbers; models without an answer to the sample are left out."""
    out: dict[str, dict[str, list[Record]]] = {}
    for model, rows in records.items():
        for record in sorted(rows, key=lambda r: r.k):
            out.setdefault(record.sample_id, {}).setdefault(model, []).append(record)
    return out


def question(
    index: int,
    sample_id: str,
    answered: Mapping[str, Sequence[Record]],
    colours: Mapping[str, str],
    frames: Frames | None,
    task: str = "",
    prompts: Mapping[str, Written] | None = None,
) -> Question:
    """The card of one question.

    Args:
        answered: model -> its answers to this question; not empty.
        colours: model -> colour, of all models of the page in their order.
        frames: its pixels, where they were kept.
        task: what the filter for tasks goes by; by default that of the row.
        prompts: those that were kept, by their hash.
    """
    first = next(iter(answered.values()))[0]
    target = None if frames is None else frames.target
    shown = MarkedFrames() if frames is None else frames.shown
    gold, problems = _gold(frames, first)
    drawn = [
        (model, number, record, _said(record, target, shown))
        for model, rows in answered.items()
        for number in [list(colours).index(model) + 1]
        for record in rows
    ]
    ends = [0.0, *(s.end for s in gold.spans)]
    if frames is not None:
        ends += [frames.duration or 0.0, *(frames.times or ())[-1:]]
    timed = bool(gold.spans) or any(marks.spans for _, _, _, marks in drawn)
    length = max(ends) or 1.0
    several = {model for model, rows in answered.items() if len(rows) > 1}
    named = [(f"{model} k={record.k}" if model in several else model, layer, colours[model], record) for model, layer, record, _ in drawn]
    answers = tuple(_answer(*name, marks, length) for name, (_, _, _, marks) in zip(named, drawn, strict=True))
    layers = [(0, TRUTH_COLOUR, gold), *((layer, colours[model], marks) for model, layer, _, marks in drawn)]
    return Question(
        index=index,
        id=visible(sample_id),
        task=visible(task or first.task),
        category=visible(first.category or ""),
        text=visible(sample_id if frames is None else frames.question),
        truth=spans_text(gold.spans),
        axis=tuple((100 * t / length, number(t)) for t in nice_ticks(0.0, length, 8)) if timed else (),
        gold_bars=bars(gold.spans, length),
        strip=None if frames is None else strip_of(frames, layers),
        answers=answers,
        problems=problems,
        prompts=_prompts(answered, prompts or {}),
        steps=step_table(frames, named),
        tags=_tags(answered, bool(problems) or any(a.problems for a in answers)),
        score=_means(answered)[1],
        change=_means(answered)[1] - _means(answered)[0],
    )


def _prompts(answered: Mapping[str, Sequence[Record]], kept: Mapping[str, Written]) -> tuple[Asked, ...]:
    """How the question was put; several where models were asked differently, as after other answer formats."""
    found: dict[str, list[str]] = {}
    for model, rows in answered.items():
        if rows[0].prompt_ids_hash in kept:
            found.setdefault(rows[0].prompt_ids_hash, []).append(model)
    return tuple(
        Asked(
            models="" if len(models) == len(answered) else visible(", ".join(models)),
            pieces=tuple((visible(text), count) for text, count in kept[name]),
        )
        for name, models in found.items()
    )


def strip_of(frames: Frames, layers: Sequence[tuple[int, str, Marks]]) -> Strip:
    """The pixels with the marks on them: (number, colour, marks) of each answer, drawn in this order."""
    height, width = frames.size
    still = frames.count == 1
    marked = any(marks.shapes for _, _, marks in layers)
    low, high = (
        (STILL_HEIGHT, MAX_STILL_HEIGHT) if still else (MARKED_HEIGHT, MAX_MARKED_HEIGHT) if marked else (FRAME_HEIGHT, MAX_FRAME_HEIGHT)
    )
    scale = max(1.0, low / height) if height <= high else high / height
    scale = min(scale, MAX_STILL_WIDTH / width)
    share = "all" if frames.count == frames.total else f"{frames.count} of"
    what = "a picture" if frames.times is None and frames.total == 1 else f"{share} {frames.total} frames"
    spans = next((marks.spans for number_, _, marks in layers if number_ == 0), ())
    out: list[Frame] = []
    for i in range(frames.count):
        time = frames.times[i] if frames.times else None
        on_it = (
            Layer(number=n, colour=colour, shapes=_shapes(marks.shapes, i, width * scale, height * scale)) for n, colour, marks in layers
        )
        out.append(
            Frame(
                label="" if time is None else _time(time) + (" again" if i and frames.times and frames.times[i - 1] == time else ""),
                offset=100 * i / (frames.count - 1) if frames.count > 1 else 0.0,
                inside=time is not None and any(s.start <= time < s.end for s in spans),
                layers=tuple(layer for layer in on_it if layer.shapes),
            )
        )
    return Strip(
        frames=tuple(out),
        width=width * scale,
        height=height * scale,
        data=frames.strip,
        smooth=scale < 1,
        still=still,
        pixels=f"{what} of {width} × {height} pixels",
    )


def _time(seconds: float) -> str:
    return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"


def bars(spans: Sequence[Span], length: float) -> tuple[Bar, ...]:
    """Spans cut to the axis [0, length]."""
    return tuple(bar((s.start, s.end), length, 0.25 + 0.75 * s.weight) for s in spans)


def bar(span: Sequence[float], length: float, strength: float = 1.0) -> Bar:
    """A span, put in order and cut to the axis [0, length]."""
    start, end = sorted(span)
    left, right = (min(max(t, 0.0), length) for t in (start, end))
    return Bar(left=100 * left / length, width=100 * (right - left) / length, strength=strength)


def span_text(span: Sequence[float]) -> str:
    """`1.5 – 4 s`."""
    return f"{number(span[0])} – {number(span[1])} s"


def spans_text(spans: Sequence[Span]) -> str:
    """`1.5 – 4 s, 6 – 8 s`, at most six of them."""
    return ", ".join(span_text((s.start, s.end)) for s in spans[:6]) + (" ..." if len(spans) > 6 else "")


def pieces(text: str) -> tuple[tuple[str, str], ...]:
    """A completion cut at its tags, for colouring: (`thought`, `answer` or empty, text). Joined they are the text."""
    out: list[tuple[str, str]] = []
    place = 0
    for match in _TAGGED.finditer(text):
        out.append(("", text[place : match.start()]))
        out.append(("thought" if match[0][:6].lower() == "<think" else "answer", match[0]))
        place = match.end()
    out.append(("", text[place:]))
    return tuple((kind, visible(piece)) for kind, piece in out if piece)


def _gold(frames: Frames | None, record: Record) -> tuple[Marks, tuple[str, ...]]:
    """The marks of the truth, and what cannot be drawn of it."""
    if frames is None:
        return Marks(), ()
    if frames.target is None:
        spans = () if frames.gold is None else (Span(start=frames.gold[0], end=frames.gold[1]),)
        lost = ANSWER_TYPES[record.answer_type].in_frame
        return Marks(spans=spans), ("no marks: these frames were kept without the row's coordinate frame; evaluate again",) if lost else ()
    gold = gold_marks(frames.target, frames.shown)
    return gold, tuple(visible(text) for text in gold.problems)


def _said(record: Record, target: Target | None, shown: MarkedFrames) -> Marks:
    """The marks of one answer; without a target its spans of time, which need no frame."""
    if target is None:
        bare = Target(answer_type=record.answer_type, gt={})
        return Marks(spans=answer_marks(bare, shown, record.answer).spans) if record.answer_type in ANSWER_TYPES else Marks()
    thought = parse(record.text, record.answer_format).thought if OBJECTS in target.gt else None
    return answer_marks(target, shown, record.answer, thought)


def _answer(model: str, layer: int, colour: str, record: Record, marks: Marks, length: float) -> Answer:
    spans = "" if marks.shapes else spans_text(marks.spans)
    return Answer(
        model=visible(model),
        layer=layer,
        colour=colour,
        status=record.status,
        span="" if record.pred is None else spans or visible(record.answer or ""),
        bars=bars(marks.spans, length),
        score=main_score(record),
        tokens=record.n_out,
        pieces=pieces(record.text),
        problems=tuple(visible(text) for text in marks.problems),
    )


def _tags(answered: Mapping[str, Sequence[Record]], undrawn: bool) -> tuple[str, ...]:
    """By the mean score over a model's answers to the question."""
    models = list(answered.values())
    first, last = _means(answered)
    everything = [r for rows in models for r in rows]
    holds = {
        "better": last > first,
        "worse": last < first,
        "failed": last == 0,
        "low": last < 0.5,
        "unreadable": any(r.status != "ok" for r in everything),
        "cut": any(r.finish == "length" or r.unclosed or r.status == "truncated" for r in everything),
        "thought": any(r.think.has for r in models[-1]),
        "skipped": any(not r.think.has for r in models[-1]),
        "undrawn": undrawn,
    }
    return tuple(name for name in TAGS if holds[name])


def _means(answered: Mapping[str, Sequence[Record]]) -> tuple[float, float]:
    """Mean scores of the first and of the last model."""
    models = list(answered.values())
    first, last = (sum(main_score(r) for r in rows) / len(rows) for rows in (models[0], models[-1]))
    return first, last


def _shapes(marks: Sequence[Mark], frame: int, width: float, height: float) -> tuple[OverlayShape, ...]:
    out: list[OverlayShape] = []
    for mark in marks:
        if mark.frame is not None and mark.frame != frame:
            continue
        places = [(round(x * width / 100, 1), round(y * height / 100, 1)) for x, y in mark.points]
        if mark.kind == "point":
            (x, y) = places[0]
            cross = f"M{x - 5:g} {y - 5:g}l10 10m0 -10l-10 10"
            out.append(OverlayShape(path=cross, odd=mark.odd) if mark.negative else OverlayShape(path="", dot=(x, y), odd=mark.odd))
        elif mark.kind == "polygon":
            out.append(OverlayShape(path="M" + "L".join(f"{x:g} {y:g}" for x, y in places) + "Z", odd=mark.odd))
        else:
            corners = zip(places[::2], places[1::2], strict=True)
            path = "".join(f"M{x1:g} {y1:g}H{x2:g}V{y2:g}H{x1:g}Z" for (x1, y1), (x2, y2) in corners)
            out.append(OverlayShape(path=path, filled=mark.kind == "mask", odd=mark.odd))
    return tuple(out)


def filters(questions: Sequence[Any]) -> dict[str, Any]:
    """What the filter bar of a page offers: tags that some card has, with their meaning and number of cards, and the tasks."""
    counts = {name: sum(name in q.tags for q in questions) for name in TAGS}
    tasks = list(dict.fromkeys(q.task for q in questions))
    return {"tags": [(name, TAGS[name], n) for name, n in counts.items() if n], "tasks": tasks if len(tasks) > 1 else []}


def layers(colours: Mapping[str, str], questions: Sequence[Question]) -> list[tuple[int, str, str]]:
    """(number, name, colour) of each layer of marks, for switching it off; empty where no card has marks."""
    if not any(frame.layers for q in questions if q.strip is not None for frame in q.strip.frames):
        return []
    return [(0, "truth", TRUTH_COLOUR), *((n, visible(name), colour) for n, (name, colour) in enumerate(colours.items(), start=1))]
