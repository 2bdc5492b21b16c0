"""The toy task: when is the red square visible? Scenes, questions, thoughts and spans, as pure functions.

Everything in a row comes from integer hashes of (seed, split, index, name), not from a generator's stream, so rows are
byte-identical on every machine and with every numpy version. Events begin and end on whole seconds below 10: exact in
binary, two digits in text, on a frame of every frame rate, and between two temporal patches of a model that sees two frames
a second. Times are in seconds throughout.

Every video shows one coloured event, which its row asks about, and one or two grey ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlmrl.extras.toy.picture import COLORS, GREY
from vlmrl.rng import key

Split = Literal["pretrain", "sft", "train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("pretrain", "sft", "train", "validation", "test")
LOOSE: frozenset[Split] = frozenset({"pretrain", "sft"})
"""Splits whose answers are annotated carelessly: each boundary may be a second off, outwards. What a model learns from them sees
but is unsure; the other splits carry exact spans."""

SHAPES = ("square", "circle", "triangle")
SIZES = ((56, 56), (64, 64), (68, 60), (96, 72), (72, 96), (80, 80), (112, 84), (84, 112), (112, 112))
"""Width and height in pixels; even, because yuv420p halves the colour planes. With `max_pixels` of 4704 the resize rule of
Qwen-VL brings each of them to 56x56: four visual tokens per second, which is what keeps the demo short."""
RATES = (6, 8, 10, 12)
"""Frames per second; even, so that half seconds fall on frames."""
PHRASINGS = (
    "When is the {name} visible?",
    "When can you see the {name}?",
    "When is the {name} on screen?",
    "At what time is the {name} shown?",
)
CORNERS = ("top left", "top right", "bottom left", "bottom right")
HALF = 0.5
MIN_HALVES, MAX_HALVES = 11, 16
"""Least and greatest duration, in half seconds (5.5 to 8 s)."""
TARGET_SECONDS = (1, 4)
"""Least and greatest length of a visible span."""

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One shape in one quarter of the picture, visible for `start <= t < end`."""

    color: str
    shape: str
    start: float
    end: float
    quarter: int
    """0 to 3: top left, top right, bottom left, bottom right. No two events of a scene share one."""

    @property
    def name(self) -> str:
        return f"{self.color} {self.shape}"

    @property
    def span(self) -> Span:
        return self.start, self.end


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What one video shows. The asked event is the first; no other event has its name."""

    split: Split
    index: int
    duration: float
    rate: int
    size: tuple[int, int]
    """Width, height in pixels."""
    events: tuple[Event, ...]
    phrasing: int

    @property
    def id(self) -> str:
        """Id of the row, or its beginning where a scene has several rows."""
        return f"toy-{self.split}-{self.index:06d}"

    @property
    def video(self) -> str:
        """Path relative to the world's folder."""
        return f"videos/{self.split}/{self.index:06d}.mp4"


def make_scene(seed: int, split: Split, index: int) -> Scene:
    """The scene at these coordinates: a coloured event, which is asked about, and grey ones, each in a quarter of its own, overlapping
    freely in time."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy", split, index, *names) % n

    halves = MIN_HALVES + draw(MAX_HALVES - MIN_HALVES + 1, "duration")
    quarters = [0, 1, 2, 3]
    events: list[Event] = []
    for i in range(2 + draw(2, "events")):
        length = TARGET_SECONDS[0] + draw(TARGET_SECONDS[1] - TARGET_SECONDS[0] + 1, "length", i)
        start = draw(halves // 2 - length + 1, "start", i)
        events.append(
            Event(
                color=list(COLORS)[draw(len(COLORS), "color")] if i == 0 else GREY,
                shape=SHAPES[draw(len(SHAPES), "shape", i)],
                start=float(start),
                end=float(start + length),
                quarter=quarters.pop(draw(len(quarters), "quarter", i)),
            )
        )
    return Scene(
        split=split,
        index=index,
        duration=halves * HALF,
        rate=RATES[draw(len(RATES), "rate")],
        size=SIZES[draw(len(SIZES), "size")],
        events=tuple(events),
        phrasing=draw(len(PHRASINGS), "phrasing"),
    )


def format_time(seconds: float) -> str:
    return f"{seconds:.1f}"


def format_span(span: Span) -> str:
    """`3.0 to 5.5`, as the model should write it between the answer tags."""
    return f"{format_time(span[0])} to {format_time(span[1])}"


def question(scene: Scene) -> str:
    return PHRASINGS[scene.phrasing].format(name=scene.events[0].name)


def thought(scene: Scene) -> str:
    """A short true thought: where to look."""
    return f"The {scene.events[0].name} is at the {CORNERS[scene.events[0].quarter]}."


def loose_span(seed: int, scene: Scene) -> Span:
    """A careless annotation: up to a second early, up to a second late, inside the video."""
    start, end = scene.events[0].span
    early, late = (key(seed, "toy", scene.split, scene.index, name) % 2 for name in ("early", "late"))
    return max(0.0, start - early), min(scene.duration, end + late)


def make_row(seed: int, scene: Scene) -> dict[str, Any]:
    """The data row of a scene. Its first event is the one that is asked about."""
    loose = scene.split in LOOSE
    span = loose_span(seed, scene) if loose else scene.events[0].span
    row: dict[str, Any] = {
        "id": scene.id,
        "task": "temporal_grounding",
        "answer_type": "time_span",
        "data_type": "video",
        "video": scene.video,
        "prompt": question(scene),
        "answer": format_span(span),
        "gt": {"time": list(span)},
        "source": "toy",
        "meta": {
            "duration": scene.duration,
            "fps": scene.rate,
            "size": list(scene.size),
            "labels": "loose" if loose else "exact",
            "phrasing": scene.phrasing,
            "events": [{"color": e.color, "shape": e.shape, "time": list(e.span), "quarter": e.quarter} for e in scene.events],
        },
    }
    return row | ({"thought": thought(scene)} if scene.split == "sft" else {})


def tokenizer_corpus(instructions: Sequence[str] = ()) -> Iterable[str]:
    """Text in which every word of questions, thoughts, answers and the given instructions occurs, to train the tokenizer on."""
    for split_index in range(64):
        scene = make_scene(0, "sft", split_index)
        yield question(scene)
        yield thought(scene)
        answer = f"<answer>{format_span(scene.events[0].span)}</answer>"
        yield answer
        yield f"<think>{thought(scene)}</think>{answer}"
        yield f"<think>\n\n</think>{answer}"
    for color in COLORS:
        for shape in SHAPES:
            for phrasing in PHRASINGS:
                yield phrasing.format(name=f"{color} {shape}")
    for instruction in instructions:
        for _ in range(16):
            yield f" {instruction}"
    for _ in range(16):
        yield "user\n"
        yield "assistant\n"
        yield "system\n"
