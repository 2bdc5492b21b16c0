"""A run without a model: a sampler plans, a fixed rule answers, the ledger learns. For tests of samplers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from vlmrl import rng
from vlmrl.protocols import PromptSampler
from vlmrl.sampling.info import SampleInfo
from vlmrl.sampling.ledger import Ledger
from vlmrl.types import PlannedPrompt

G = 4


def infos(n: int, **tags: Sequence[str]) -> list[SampleInfo]:
    """Samples s0, s1, ... with the given tags; a task named `task` cycles through the given names."""
    tasks = tags.pop("task", ["t"])
    return [
        SampleInfo(id=f"s{i}", task=tasks[i % len(tasks)], tags={k: v[i % len(v)] for k, v in tags.items() if v[i % len(v)]})
        for i in range(n)
    ]


def answer(ledger: Ledger, plan: Sequence[PlannedPrompt], step: int, rate: Callable[[str], float] | None = None) -> None:
    """G answers per planned prompt, right with a chance that by default depends on the sample."""
    for place, wish in enumerate(plan):
        p = rng.uniform(1, "rate", wish.sample_id) if rate is None else rate(wish.sample_id)
        rewards = [float(rng.uniform(2, step, place, wish.sample_id, k) < p) for k in range(G)]
        ledger.observe(wish.sample_id, rewards=rewards, lengths=[5] * G, step=step, diversity=p)


def run(
    sampler: PromptSampler,
    ledger: Ledger,
    steps: range,
    prompts: int,
    rate: Callable[[str], float] | None = None,
) -> list[list[PlannedPrompt]]:
    """The plans of some steps."""
    out: list[list[PlannedPrompt]] = []
    for step in steps:
        out.append(sampler.plan(ledger, prompts=prompts, rollouts=G))
        answer(ledger, out[-1], step, rate)
    return out


def resumes(make: Callable[[], PromptSampler], *, before: int, after: int, prompts: int) -> None:
    """Saving after `before` steps, through JSON, and going on in a fresh process gives the plans of the uninterrupted run."""
    ledger, sampler = Ledger(), make()
    run(sampler, ledger, range(before), prompts)
    saved, memory = json.loads(json.dumps(sampler.state_dict())), json.loads(json.dumps(ledger.state_dict()))
    expected = run(sampler, ledger, range(before, before + after), prompts)
    again, restored = make(), Ledger()
    again.load_state_dict(saved)
    restored.load_state_dict(memory)
    assert again.state_dict() == saved
    assert run(again, restored, range(before, before + after), prompts) == expected
    assert again.state_dict() == sampler.state_dict()


def ids(plans: Sequence[Sequence[PlannedPrompt]]) -> list[str]:
    return [p.sample_id for plan in plans for p in plan]


def broken_states(good: dict[str, Any]) -> list[dict[str, Any]]:
    """States that no sampler may load: a key too many, each key missing, each key of a wrong type."""
    missing = [{k: v for k, v in good.items() if k != key} for key in good]
    wrong = [good | {key: None} for key in good]
    negative = [good | {key: -1} for key, value in good.items() if isinstance(value, int)]
    return [good | {"extra": 1}, *missing, *wrong, *negative, good | {"samples": "other"}]
