"""Made-up kept groups, for tests of what writes, reads and shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vlmrl.extras.pages.kept.record import KeptGroup, Trained, record_of
from vlmrl.media.store import ProcessedMedia
from vlmrl.types import Group, MediaHandle, MediaRef, Prompt, Rollout, Sample, ScoredGroup, Scores


def key_of(number: int) -> str:
    """The key of a medium."""
    return f"{number:064x}"


def pixels(key: str, *, count: int = 1, height: int = 56, width: int = 84, colour: int = 200) -> ProcessedMedia:
    """A medium: one frame is an image, several are a video at two frames a second, with a red box that goes to the right."""
    frames = np.full((count, height, width, 3), colour, dtype=np.uint8)
    for i in range(count):
        left = 8 + (i * (width - 36)) // max(1, count - 1)
        frames[i, height // 4 : 3 * height // 4, left : left + 20] = (196, 64, 58)
    video = count > 1
    return ProcessedMedia(
        handle=MediaHandle(kind="video" if video else "image", key=key, grid_thw=(max(1, count // 2), height // 14, width // 14), tokens=6),
        frames=frames,
        times=np.arange(count) / 2 if video else None,
        pixel_values=np.zeros((1, 1), dtype=np.float32),
        original_size=(height, width),
        duration=count / 2 if video else None,
    )


def group(
    step: int,
    place: int = 0,
    *,
    rewards: Sequence[float | None] = (1.0, 0.0),
    texts: Sequence[str] | None = None,
    sample: str = "row-1",
    question: str = "Where is it?",
    media: Sequence[MediaHandle] = (),
    stage: str = "rl",
    surprise: float = 0.5,
    **row: Any,
) -> KeptGroup:
    """A group of a step, one answer per reward."""
    texts = texts or [f"<think>look</think><answer>{value}</answer>" for value in rewards]
    values: dict[str, Any] = {"task": "spans", "answer_type": "time_span", "answer": "1.0 to 3.0", "gt": {"time": [1.0, 3.0]}} | row
    asked = Sample(
        id=sample, question=question, media=tuple(MediaRef(kind=one.kind, path="a/b") for one in media), source="rows.jsonl:1", **values
    )
    rollouts = tuple(
        Rollout(k=k, ids=tuple(range(len(text))), logprobs=(-0.25,) * len(text), text=text, finish="stop", policy_version=step)
        for k, text in enumerate(texts)
    )
    prompt = Prompt(sample=asked, ids=(1, 2), media=tuple(media), spans=(), answer_format="think")
    scores = Scores(columns=("score",), weights=(1.0,), rewards_GK=tuple((value,) for value in rewards))
    return KeptGroup(
        stage=stage,
        step=step,
        global_step=step,
        place=place,
        scored=ScoredGroup(group=Group(id=f"{stage}/{step}/{place}", prompt=prompt, rollouts=rollouts), scores=scores),
        expected=0.5,
        surprise=surprise,
        rows=tuple(Trained(advantage=0.0 if value is None else value - 0.5) for value in rewards),
    )


def record(step: int, place: int = 0, **more: Any) -> dict[str, Any]:
    """The record of `group`, with one character of the text for each token."""
    kept = group(step, place, **more)
    texts = iter([rollout.text for rollout in kept.scored.group.rollouts])
    return record_of(kept, lambda ids: list(next(texts)))
