"""Small inputs of rewards and methods, for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.types import Group, Prompt, Rollout, Sample


class GivenInputs(AdvantageInputs):
    """Inputs whose further keywords are what providers give, `dataclasses.replace(x, entropy_NT=...)`; None takes one away, and a stage has
    just begun if nothing else is said."""

    def __init__(self, *, provided: Mapping[str, torch.Tensor] | None = None, **values: Any) -> None:
        fields = {one.name for one in dataclasses.fields(AdvantageInputs)}
        more = {name: value for name, value in values.items() if name not in fields}
        if isinstance(more.get("progress"), float):
            more["progress"] = torch.tensor(more["progress"], dtype=torch.float64)
        found = {"progress": torch.zeros((), dtype=torch.float64), **(provided or {}), **more}
        super().__init__(
            **{name: value for name, value in values.items() if name in fields},
            provided={name: value for name, value in found.items() if value is not None},
        )


def inputs(rows: Sequence[tuple[float, int, bool]], tasks: Sequence[int] | None = None, off_policy: Sequence[int] = ()) -> AdvantageInputs:
    """Rows are (reward, group, valid); by default the task is the group's parity. `off_policy`: places of ground-truth rows."""
    reward = torch.tensor([r if ok else float("nan") for r, _, ok in rows], dtype=torch.float64)
    group = torch.tensor([g for _, g, _ in rows], dtype=torch.int64)
    return GivenInputs(
        reward_N=reward,
        rewards_NK=reward[:, None].clone(),
        valid_N=torch.tensor([ok for _, _, ok in rows], dtype=torch.bool),
        group_N=group,
        task_N=group % 2 if tasks is None else torch.tensor(tasks, dtype=torch.int64),
        on_policy_N=torch.tensor([i not in off_policy for i in range(len(rows))], dtype=torch.bool),
        length_N=torch.full((len(rows),), 3, dtype=torch.int64),
        columns=("task",),
    )


def sample(answer: str = "3.0 to 5.0", gt: dict[str, Any] | None = None, **more: Any) -> Sample:
    return Sample(
        id=more.pop("id", "row"),
        task="temporal_grounding",
        answer_type="time_span",
        question="When?",
        media=(),
        answer=answer,
        gt={"time": [3.0, 5.0]} if gt is None else gt,
        **more,
    )


def group(texts: Sequence[str], of: Sample | None = None, answer_format: str = "think_answer") -> Group:
    """A group with these completions; each character is one token."""
    prompt = Prompt(sample=of or sample(), ids=(1,), media=(), spans=(), answer_format=answer_format)
    rollouts = tuple(
        Rollout(k=k, ids=tuple(map(ord, t)), logprobs=(-0.5,) * len(t), text=t, finish="stop", policy_version=4)
        for k, t in enumerate(texts)
    )
    return Group(id="g", prompt=prompt, rollouts=rollouts)
