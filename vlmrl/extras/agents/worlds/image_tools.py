"""Environment `image_tools`: any row with pictures or videos as an episode in which the policy may look again before it answers.

The first observation is the row's question with its media and a sentence for each tool; a turn is a tool call or the final answer. A call
shows what it asked for. A call that cannot be made is `invalid` and says why in a sentence; the episode goes on. The final answer ends it
and is scored by the row's answer type, as in a single turn: the reward is the type's main score.

Pictures are shown as they are. A video is shown as `overview` frames of it, evenly from its start, with their times as text: every family
of models reads pictures between turns, and not every one reads videos there. Calls are a policy's to make, so the cost of one is a reward
of its own (`tool_calls` with the shaping `otc`).

A row that knows which calls suffice says so in `meta.calls`, a list of turns; then the fewest turns are known. A task without a row gets a
drawn picture (`agents.stripes`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import vlmrl.answers  # noqa: F401 (registers every answer type)
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import FREE
from vlmrl.extras.agents import ocr
from vlmrl.extras.agents.calls import Call, Unusable, read_turn
from vlmrl.extras.agents.protocol import Observation, Optimum, Transition
from vlmrl.extras.agents.rows import FORMAT, PLACE, ROW, sample_of
from vlmrl.extras.agents.stripes import BOXES, make_stripes, paint_stripes
from vlmrl.extras.agents.tools import TOOLS, Limits, Medium, Originals, asked, introduced, look, overview_times, read_medium
from vlmrl.extras.toy.picture import png
from vlmrl.media.resize import resize, smart_resize
from vlmrl.protocols import environment
from vlmrl.types import Sample, digest

VERSION = "1"
ToolName = Literal["zoom", "frames", "read_text"]
_ORIGINALS = Originals()
"""Of this process: rows of a group share what is decoded."""


class ImageTools:
    """See the top of the file."""

    def __init__(self, tools: Sequence[str], limits: Limits, overview: int, overview_pixels: int | None, repeat: bool):
        self.tools, self.limits = tuple(tools), limits
        self.overview, self.overview_pixels, self.repeat = overview, overview_pixels, repeat
        self.originals = _ORIGINALS
        self._sample: Sample | None = None
        self._media: list[Medium] = []
        self._format = FREE
        self._calls: list[str] = []
        self._last = Observation(text="")
        self._over = False

    @property
    def identity(self) -> Mapping[str, str]:
        reads = {"ocr": ocr.version()} if "read_text" in self.tools else {}
        return {"environment": "image_tools", "version": VERSION, **reads}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """A row. Reads its media; decodes only videos, for their overview."""
        if ROW in task:
            self._sample = sample_of(task)
            self._media = [read_medium(ref, Path(task[PLACE])) for ref in self._sample.media]
        else:
            self._sample, self._media = _drawn(str(task.get("id", "drawn")), seed)
        self._format = str(task.get(FORMAT, FREE))
        self._calls, self._over = [], False
        self._last = self._begin()
        return self._last

    def step(self, action: str) -> Transition:
        """A call or the answer."""
        if self._over or self._sample is None:
            raise RuntimeError("image_tools: a step outside an episode")
        try:
            said = read_turn(action, self._format)
            if isinstance(said, Call):
                shown = look(said, self._offered(), self._media, self.limits, self.originals)
                self._calls.append(said.text())
                return Transition(observation=self._observe(shown.text, shown.screens))
        except Unusable as told:
            return Transition(observation=self._observe(str(told), ()), outcome="invalid")
        self._over = True
        kind = ANSWER_TYPES[self._sample.answer_type]
        score = float(kind.score(said.text, self._sample)[2][kind.main])
        return Transition(observation=None, reward=score, outcome="success" if score >= kind.right_at else "failure")

    def close(self) -> None:
        pass

    def propose(self, n: int) -> str:
        """Calls that can be made and some that cannot, and the true answer."""
        assert self._sample is not None
        boxes = [Call(name="zoom", arguments={"box": box}).text() for box in (*BOXES, [0, 0, 0, 10], [900, 0, 1100, 10])]
        spans = [Call(name="frames", arguments={"start": 0, "end": end, "count": 2}).text() for end in (0.5, 1e6)]
        texts = [Call(name="read_text", arguments={"box": box}).text() for box in BOXES] if "read_text" in self.tools else []
        choices = [*boxes, *spans, *texts, "<tool_call>zoom</tool_call>", self._gold()]
        return choices[n % len(choices)]

    def solve(self) -> str | None:
        """The next call that the row names, then its true answer."""
        known = self._known()
        if known is None:
            return None
        return known[len(self._calls)] if len(self._calls) < len(known) else self._gold()

    def optimum(self) -> Optimum | None:
        """Where the row says which calls suffice."""
        known = self._known()
        return None if known is None else Optimum(reward=1.0, turns=len(known) + 1)

    def _known(self) -> list[str] | None:
        calls = None if self._sample is None else self._sample.meta.get("calls")
        return None if not isinstance(calls, list) else [str(call) for call in calls]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    def _gold(self) -> str:
        assert self._sample is not None
        return self._sample.answer if self._format == FREE else f"<answer>{self._sample.answer}</answer>"

    def _offered(self) -> list[str]:
        """Tools for which the row has media."""
        kinds = {medium.kind for medium in self._media}
        return [name for name in self.tools if TOOLS[name].kind in kinds]

    def _asked(self) -> str:
        """The question with a sentence for each tool."""
        assert self._sample is not None
        counts = {name: sum(medium.kind == TOOLS[name].kind for medium in self._media) for name in self._offered()}
        return asked(self._sample.question, counts, self.limits)

    def _begin(self) -> Observation:
        told: list[str] = []
        screens: list[bytes] = []
        for text, files in map(self._shown, self._media):
            told += [text] if text else []
            screens += files
        return Observation(text=" ".join([*told, self._asked()]), screens=tuple(screens), state=self._state())

    def _shown(self, medium: Medium) -> tuple[str, list[bytes]]:
        """What is told of a medium, and its pictures: the file itself, or frames of a video."""
        if medium.kind == "image":
            return "", [medium.data]
        assert medium.seconds is not None
        times = overview_times(medium.seconds, self.overview)
        shown = self.originals.span(medium.digest, medium.data, times, bundled=medium.bundled)
        frames = shown.frames
        if self.overview_pixels is not None:
            height, width = smart_resize(*frames.shape[1:3], factor=2, min_pixels=1, max_pixels=self.overview_pixels)
            if height * width < frames.shape[1] * frames.shape[2]:
                frames = resize(frames, height, width)
        return introduced(medium.seconds, shown.times), [png(frame) for frame in frames]

    def _observe(self, text: str, screens: tuple[bytes, ...]) -> Observation:
        return Observation(text=f"{text} {self._asked()}" if self.repeat else text, screens=screens, state=self._state())

    def _state(self) -> str:
        """What was looked at, in order: the rest of an episode depends on nothing else that can be seen."""
        return digest(self._calls)[:32]


def _drawn(name: str, seed: int) -> tuple[Sample, list[Medium]]:
    """A drawn picture as a row."""
    shown = make_stripes(seed)
    data = png(paint_stripes(shown))
    sample = Sample(
        id=name,
        task="stripes",
        answer_type="exact_text",
        question=shown.question,
        media=(),
        answer=shown.answer,
        gt={},
        meta={"calls": [shown.call]},
    )
    return sample, [Medium(kind="image", data=data, digest=hashlib.sha256(data).hexdigest())]


def _begins_anew(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if stage.history.screens is not None and not arguments.get("repeat", False):
        yield (
            "environment 'image_tools' asks its question once, and with history.screens a prompt begins anew without it; remove "
            "history.screens, or set environment.repeat: true"
        )


def _refused(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    yield from _begins_anew(arguments, stage)
    lacks = ocr.missing()
    if lacks is not None and "read_text" in arguments.get("tools", ()):
        yield f"environment 'image_tools': {lacks}"


@environment("image_tools", rows=True, refuses=_refused, lacking=ocr.missing, tasks=({"id": "stripes"},))
def image_tools(
    *,
    tools: tuple[ToolName, ...] = ("zoom", "frames"),
    most_frames: int = 8,
    max_ratio: float = 4.0,
    overview: int = 8,
    overview_pixels: int | None = None,
    repeat: bool = False,
) -> ImageTools:
    """Rows with pictures or videos as episodes: the policy may zoom in, or see more frames, before it answers.

    Args:
        tools: which of `zoom`, `frames` and `read_text`; a row is offered those that its media allow. What reads text is an extra (`ocr`).
        most_frames: of one call of `frames`.
        max_ratio: longest side of a zoomed box over its shortest. A picture has to fit into `media.max_pixels`, which with few visual
            tokens thin ones do not.
        overview: frames that a video is shown by at first.
        overview_pixels: most pixels of each; None: as many as `media.max_pixels` allows.
        repeat: whether every observation says the question again, for prompts that begin anew (`history.screens`).

    Raises:
        ValueError: no tool, one that is named twice, or a number out of range.
        ConfigError: text is to be read, and nothing is installed that reads.
    """
    if not tools or len(set(tools)) < len(tools):
        raise ValueError(f"environment 'image_tools': tools are {list(tools)}; name at least one, and each once")
    if most_frames < 1 or overview < 1 or max_ratio < 1 or (overview_pixels is not None and overview_pixels < 4):
        raise ValueError(
            f"environment 'image_tools': most_frames {most_frames}, overview {overview}, max_ratio {max_ratio:g}, overview_pixels "
            f"{overview_pixels}; the first three are at least 1, the last at least 4"
        )
    if "read_text" in tools:
        ocr.reader()  # takes longer than a step may
    limits = Limits(frames=most_frames, ratio=max_ratio)
    return ImageTools(tools, limits, overview, overview_pixels, repeat)
