"""Holds a row against itself and its video: its answer against its ground truth, and the times of that against the clip.

A row whose text says one thing and whose numbers another teaches the one in fine-tuning and is scored by the other in RL. Both kinds of
stage check their rows with this before the first step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, cast

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import gold_text, parse
from vlmrl.errors import RowError
from vlmrl.types import Prompt, Sample

AGREES = 0.9
"""Share of the best score that the answer of a row must reach against its own ground truth: a rounded number or time does."""
LATE_SECONDS, LATE_SHARE, LATE_LEAST = 2.0, 0.15, 0.1
"""How far times may reach behind the end of the clip: seconds, share of the clip (the smaller of both), and what is always allowed for
the rounding of containers. 14 % of the official rows of Charades-STA do, by up to 1.54 s and 14 % of the clip; they are kept as is."""
_SHOWN = 120


def check_gold(sample: Sample, prompt: Prompt) -> None:
    """Check a row's answer against its ground truth, and the times of that against the video.

    Args:
        prompt: of the sample; its media may be planned only.

    Raises:
        RowError: `answer` (the answer contradicts the ground truth) or `time` (it lies outside of the video), naming row and both values.
    """
    check_answer(sample, prompt.answer_format)
    _check_times(sample, prompt)


def check_answer(sample: Sample, answer_format: str, *, always: bool = False) -> None:
    """Score the row's answer through the parser that training uses, where the row has ground truth beside it.

    Args:
        always: also where the answer itself is all that it can be compared with; it must then be readable.

    Raises:
        RowError: `answer`.
    """
    kind = ANSWER_TYPES[sample.answer_type]
    written = kind.write(sample.gt) if sample.gt else None
    # nothing to compare with, or the answer was itself written from the ground truth
    if not always and (not sample.gt or written == sample.answer):
        return

    def score(answer: str) -> float | None:
        text = gold_text(dataclasses.replace(sample, answer=answer), answer_format, None)
        return kind.score(parse(text, answer_format).answer, sample)[2].get(kind.main)

    try:
        # the reference is what ground truth itself scores once it is written and parsed: the format's rounding may cost some of 1.0
        got, best = score(sample.answer), 1.0 if written is None else score(written)
    except ValueError as error:
        raise RowError("answer", f"row '{sample.id}' ({sample.source}): its answer cannot be scored: {str(error)[:200]}") from error
    if got is None or best is None or got >= AGREES * best:
        return
    if not sample.gt:
        where = f"row '{sample.id}' ({sample.source})"
        raise RowError("answer", f"{where}: 'answer' {sample.answer[:_SHOWN]!r} cannot be read as '{kind.name}': it scores {got:.3g}")
    truth = ", ".join(f"{key}: {str(value)[:_SHOWN]}" for key, value in sample.gt.items())
    raise RowError(
        "answer",
        f"row '{sample.id}' ({sample.source}): 'answer' {sample.answer[:_SHOWN]!r} scores {got:.3g} of {best:.3g} against its own "
        f"'gt' ({truth}); they contradict each other: correct one, or leave 'answer' out where 'gt' determines it",
    )


def _check_times(sample: Sample, prompt: Prompt) -> None:
    if len(sample.media) != 1 or sample.media[0].kind != "video":
        return
    times = list(_times(sample.gt))
    duration = prompt.media[0].duration
    if not times or duration is None:
        return
    # end <= duration + max(0.1 s, min(2 s, 15 % of the clip))
    latest = duration + max(LATE_LEAST, min(LATE_SECONDS, LATE_SHARE * duration))
    for key, start, end in times:
        if start >= duration or end > latest:
            span = f"{start:g}" if start == end else f"[{start:g}, {end:g}]"
            raise RowError(
                "time",
                f"row '{sample.id}' ({sample.source}): '{key}' is {span} s, but {sample.media[0].path} is {duration:.2f} s long "
                f"(up to {latest:.2f} s are taken); correct the span, or the video is another one",
            )


def _times(gt: Any) -> Iterator[tuple[str, float, float]]:
    """(key, start, end) of the times in ground truth that its answer type has checked."""
    spans = [("gt.time", gt.get("time"))]
    windows = gt.get("windows")
    spans += [(f"gt.windows[{i}]", one) for i, one in enumerate(cast("list[object]", windows) if isinstance(windows, list) else [])]
    for key, span in spans:
        if isinstance(span, list | tuple) and len(cast("list[object]", span)) == 2:
            start, end = cast("list[float]", span)
            yield key, float(start), float(end)
        elif isinstance(span, int | float) and not isinstance(span, bool):
            yield key, float(span), float(span)
