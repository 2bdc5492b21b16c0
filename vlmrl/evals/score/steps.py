"""A thought, step by step, against the true steps that a row states.

A row states them in `meta.steps` (`[{"time": 0, "text": "green"}, ...]`): each with the second of the video that it is about. The steps of
a thought stand between commas. Step k is compared with step k, so that one step too many puts all after it in the wrong place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, cast

from vlmrl.types import Sample

KEY = "steps"
"""Of `Sample.meta`."""

Kind = Literal["right", "wrong", "missing", "surplus"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrueStep:
    """One step of a true thought."""

    time: float
    """Seconds."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedStep:
    """What a thought says in one place, and what is true there."""

    said: str | None
    """None: the thought has ended (`missing`)."""
    true: TrueStep | None
    """None: there are no more true steps (`surplus`)."""

    @property
    def kind(self) -> Kind:
        if self.said is None:
            return "missing"
        if self.true is None:
            return "surplus"
        return "right" if _plain(self.said) == _plain(self.true.text) else "wrong"


def true_steps(sample: Sample) -> tuple[TrueStep, ...]:
    """Read the true steps of a row's thought; none where it states none, or not as times and texts.

    None also where the row's own thought has another number of steps: then it is written in another way (a sentence), and step k of a
    thought like it would be compared with something else.
    """
    stated: Any = sample.meta.get(KEY)
    steps = [_true_step(value) for value in cast("list[Any]", stated)] if isinstance(stated, list) else []
    found = tuple(step for step in steps if step is not None)
    # the row's own thought shows how thoughts of its kind are written
    same = sample.thought is None or len(split_steps(sample.thought)) == len(found)
    return found if len(found) == len(steps) and same else ()


def split_steps(thought: str) -> list[str]:
    """Split a thought into the parts between commas, without space around them; a comma at the end begins no step."""
    parts = [part.strip() for part in thought.split(",")]
    return parts[:-1] if not parts[-1] else parts


def compare_steps(thought: str | None, steps: Sequence[TrueStep]) -> tuple[ComparedStep, ...]:
    """Compare every place that the thought or the truth has a step for, in order; nothing without a thought or without true steps.

    Case and the space around a step do not count.
    """
    if thought is None or not thought.strip() or not steps:
        return ()
    return tuple(ComparedStep(said=said, true=true) for said, true in zip_longest(split_steps(thought), steps))


def step_scores(thought: str | None, steps: Sequence[TrueStep]) -> dict[str, float]:
    """Compute `steps_right`, the share of true steps that the thought has in their place, and `steps_all_right`, 1 for the true thought
    and no step more; nothing without a thought or without true steps."""
    compared = compare_steps(thought, steps)
    if not compared:
        return {}
    kinds = [step.kind for step in compared]
    # a surplus step costs nothing in the share and everything in the second number
    return {"steps_right": kinds.count("right") / len(steps), "steps_all_right": float(set(kinds) == {"right"})}


def _true_step(value: Any) -> TrueStep | None:
    if not isinstance(value, Mapping):
        return None
    step = cast("Mapping[str, Any]", value)
    time, text = step.get("time"), step.get("text")
    if isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time) or not isinstance(text, str):
        return None
    return TrueStep(time=float(time), text=text)


def _plain(text: str) -> str:
    return text.strip().casefold()
