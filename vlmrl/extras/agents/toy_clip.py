"""Long videos of which one clip must be looked at (environment `image_tools` with `tools: [frames]`): when `frames` is needed, provably so.

A video has SCENES scenes of LONG seconds. Each begins with a second of a disc, grey in all of them but one; the rest shows bars across or
down, in the disc's colour. The question is which way the coloured bars run. The environment shows a video by its first frames of every
scene, so a policy can see where the colour is and not which way the bars run: scenes are encoded apart, at one quality, and no frame of a
disc depends on bars. Four frames of the right scene, from its start on, show them.

Rows of RL and of evaluation are the question, its video and its answer. The splits of `tasks.LOOSE` teach the two turns of an episode
instead, each as a row of its own, as `history: {screens: 1, actions: false}` shows them: which clip to look at, and what it shows. There
the look is careless, as in `agents.toy_zoom`: every second one goes to a scene drawn at random.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmrl.extras.agents.calls import Call
from vlmrl.extras.agents.stripes import WAYS
from vlmrl.extras.agents.tools import Limits, Looked, Medium, Originals, asked, introduced, look, overview_times
from vlmrl.extras.toy.kinds import PictureKind
from vlmrl.extras.toy.picture import COLORS, GREY, PAINT, Item, Several, png
from vlmrl.extras.toy.tasks import LOOSE, Split
from vlmrl.extras.toy.world import encode_mp4
from vlmrl.media.image import decode_image
from vlmrl.rng import generator, key

TASK = "toy_clip"
SCENES = 8
"""As many as frames that the environment shows a video by."""
LONG, RATE = 4, 2
"""Seconds of a scene, and frames per second."""
SIDE, BAR = 112, 8
"""Of a frame and of a bar, in pixels."""
LIMITS = Limits()
"""Those of the environment's defaults: its sentences stand in the rows."""
LOOK = 4
"""Frames of a clip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Film:
    """What a video shows."""

    color: str
    scene: int
    """Where it is."""
    ways: tuple[str, ...]
    """Of each scene."""
    noise: tuple[int, str, int]
    """Coordinates of places and shades."""

    @property
    def question(self) -> str:
        return f"Do the {self.color} bars run across or down?"

    @property
    def answer(self) -> str:
        return self.ways[self.scene]


def make_film(seed: int, split: Split, index: int) -> Film:
    """What the video at these coordinates shows."""

    def draw(n: int, *more: int | str) -> int:
        return key(seed, "toy-clip", split, index, *more) % n

    return Film(
        color=list(COLORS)[draw(len(COLORS), "color")],
        scene=draw(SCENES, "scene"),
        ways=tuple(WAYS[draw(2, "way", scene)] for scene in range(SCENES)),
        noise=(seed, split, index),
    )


def frames(film: Film) -> Iterator[np.ndarray]:
    """uint8 RGB [SIDE, SIDE, 3], SCENES * LONG * RATE of them."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    for scene, way in enumerate(film.ways):
        rng = generator(film.noise[0], "toy-clip-places", *film.noise[1:], scene)
        level, radius, phase = int(rng.integers(15, 60)), int(rng.integers(28, 45)), int(rng.integers(2 * BAR))
        middle = rng.integers(radius, SIDE - radius, size=2)
        paint = np.array(PAINT[film.color if scene == film.scene else GREY], dtype=np.uint8)
        disc = (x - middle[0]) ** 2 + (y - middle[1]) ** 2 <= radius**2
        bars = ((y if way == "across" else x) + phase) // BAR % 2 == 0
        for frame in range(LONG * RATE):
            yield np.where((disc if frame < RATE else bars)[:, :, None], paint, np.uint8(level))


def video(film: Film) -> bytes:
    """The file (MP4)."""
    return encode_mp4(frames(film), RATE, (SIDE, SIDE), apart=LONG * RATE)


def frames_call(scene: int) -> Call:
    """A look at a scene."""
    return Call(name="frames", arguments={"start": scene * LONG, "end": scene * LONG + LOOK - 1, "count": LOOK})


def question(film: Film) -> str:
    """As the environment asks it, with `tools: [frames]`."""
    return asked(film.question, {"frames": 1}, LIMITS)


def turns(film: Film, scene: int) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """(text, pictures) of the two observations of an episode that looks at this scene, as the environment with `repeat` makes them."""
    data, seconds, originals = video(film), float(SCENES * LONG), Originals()
    medium = Medium(kind="video", data=data, digest=hashlib.sha256(data).hexdigest(), seconds=seconds)
    first = originals.span(medium.digest, data, overview_times(seconds, SCENES), bundled=False)
    yield f"{introduced(seconds, first.times)} {question(film)}", tuple(png(frame) for frame in first.frames)
    closer: Looked = look(frames_call(scene), ["frames"], [medium], LIMITS, originals)
    yield f"{closer.text} {question(film)}", closer.screens


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The row at these coordinates; of the loose splits the two turns of an episode."""
    film, name = make_film(seed, split, index), f"toy-clip-{split}-{index:06d}"
    row: dict[str, Any] = {"task": TASK, "answer_type": "exact_text", "gt": {}, "source": "toy"}
    if split not in LOOSE:
        file = f"images/{split}/{index:06d}.mp4"
        own = {"id": name, "data_type": "video", "video": file, "prompt": film.question, "answer": film.answer}
        data = video(film)
        return [
            Several(row={**row, **own, "meta": {"calls": [frames_call(film.scene).text()]}}, pixels=next(frames(film)), named={file: data})
        ]
    careless = key(seed, "toy-clip", split, index, "careless")
    scene = careless // 2 % SCENES if careless % 2 else film.scene
    out: list[Item] = []
    for turn, ((prompt, pictures), answer) in enumerate(zip(turns(film, scene), (frames_call(scene).text(), film.answer), strict=True)):
        named = {f"images/{split}/{index:06d}-{turn}-{n}.png": file for n, file in enumerate(pictures)}
        own = {"id": f"{name}-{turn}", "data_type": "multi_image", "images": list(named), "prompt": prompt, "answer": answer}
        out.append(Several(row={**row, **own, "meta": {"turn": turn}}, pixels=decode_image(pictures[0]), named=named))
    return out


@functools.cache
def _films() -> tuple[Film, ...]:
    return tuple(Film(color=color, scene=0, ways=WAYS * (SCENES // 2), noise=(0, "sft", 0)) for color in COLORS)


def corpus() -> Iterator[str]:
    """Text in which every word of questions, observations, calls and answers occurs, for the tokenizer."""
    for film in _films():
        yield from [film.question] * 16
        for scene in range(SCENES):
            yield from (text for text, _ in turns(film, scene))
    for _ in range(16):
        for scene in range(SCENES):
            yield f"<think>\n\n</think><answer>{frames_call(scene).text()}</answer>"
            yield f"<answer>{frames_call(scene).text()}</answer>"
        for way in WAYS:
            yield f"<think>\n\n</think><answer>{way}</answer>"
            yield f"<answer>{way}</answer>"


CLIP = PictureKind(items=items, corpus=corpus, answer_types=("exact_text",))
"""`clip` of `toy.kinds.PICTURES`."""
