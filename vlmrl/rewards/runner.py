"""Calls the rewards, checks what they return, and counts every fault with its reason. A fault is never a zero.

Rewards run in this process: those of this version are pure functions of bounded text that cannot hang. A reward of a plug-in has
the authority and the risks of any code that its user installs.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from vlmrl.errors import CheckpointError, DataError
from vlmrl.protocols import RewardContext
from vlmrl.rewards.answer import gold_text
from vlmrl.types import Group, Prompt, Rollout, Sample, ScoredGroup, Scores

WINDOW = 50
"""Steps over which the share of unjudged rewards is watched."""
JUNK = ("", "I do not know.", "<think></think>", "<answer></answer>", "<answer>junk</answer>")

Function = Callable[[Group, RewardContext], Sequence[float | None]]


class RewardRunner:
    """Reward columns `(name, weight, function)`. `window` is its only memory and is part of the run's state."""

    def __init__(self, columns: Sequence[tuple[str, float, Function]], *, max_invalid: float = 0.02):
        self.columns = list(columns)
        self.max_invalid = max_invalid
        self.window: list[dict[str, list[int]]] = []
        self.first_fault: dict[str, str] = {}

    def score(self, group: Group, ctx: RewardContext) -> ScoredGroup:
        """Rewards of a group. A column that raises or breaks its contract is None for the whole group, with the reason counted."""
        values: list[list[float | None]] = []
        reasons: dict[str, int] = {}
        for name, _, function in self.columns:
            column, reason = self._call(name, function, group, ctx)
            values.append(column)
            if reason is not None:
                reasons[f"{name}/{reason}"] = len(group.rollouts)
        rows = tuple(zip(*values, strict=True)) if values else ()
        scores = Scores(
            columns=tuple(name for name, _, _ in self.columns),
            weights=tuple(weight for _, weight, _ in self.columns),
            rewards_GK=rows,
            reasons=reasons,
        )
        return ScoredGroup(group=group, scores=scores)

    def _call(self, name: str, function: Function, group: Group, ctx: RewardContext) -> tuple[list[float | None], str | None]:
        n = len(group.rollouts)
        nothing: list[float | None] = [None] * n
        try:
            returned: Any = function(group, ctx)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the reward border: counted, bounded by observe(), never a score)
            self.first_fault.setdefault(name, "".join(traceback.format_exception(error)))
            return nothing, f"raised:{type(error).__name__}"
        problem = contract_problem(returned, n)
        if problem is not None:
            self.first_fault.setdefault(name, f"{name} on row '{group.prompt.sample.id}': {problem}")
            return nothing, "contract"
        return [None if value is None else float(value) for value in returned], None

    def observe(self, counts: dict[str, list[int]]) -> None:
        """Add a step's `column -> [faults, rollouts]` (of all ranks) to the window.

        Raises:
            DataError: a column has spent the faults that `max_invalid` allows in a full window (while the window fills, of as many
                rollouts as 50 such steps would have); names it and its first fault. So one bad group early on does not stop a run,
                and a reward that always fails stops it after two steps.
        """
        self.window = [*self.window, counts][-WINDOW:]
        for name, _, _ in self.columns:
            failed = sum(step.get(name, [0, 0])[0] for step in self.window)
            total = sum(step.get(name, [0, 0])[1] for step in self.window)
            if failed > self.max_invalid * total * WINDOW / len(self.window):
                raise DataError(
                    f"reward '{name}' failed for {failed} of {total} rollouts in the last {len(self.window)} steps, more than "
                    f"max_invalid_rewards {self.max_invalid}; first fault:\n{self.first_fault.get(name, '(on another rank)')}"
                )

    def self_test(self, samples: Sequence[Sample], template: str) -> list[str]:
        """Problems found by scoring gold and junk answers: gold must get the highest total of all and junk less.

        A reward that cannot tell them apart would train on noise.
        """
        problems: list[str] = []
        for sample in samples:
            texts = (gold_text(sample, template, sample.thought), *JUNK)
            scored = self.score(_group(sample, template, texts), RewardContext())
            if scored.scores.reasons:
                kinds = ", ".join(scored.scores.reasons)
                first = next(iter(self.first_fault.values()))
                problems.append(f"row '{sample.id}' ({sample.source}): rewards failed on the gold or junk answers: {kinds}; {first}")
                continue
            totals = scored.scores.total()
            gold, junk = totals[0], [t for t in totals[1:] if t is not None]
            if gold is None:
                problems.append(f"row '{sample.id}' ({sample.source}): no reward can judge its gold answer '{sample.answer}'")
            elif junk and max(junk) >= gold:
                problems.append(
                    f"row '{sample.id}' ({sample.source}): junk scores {max(junk):.3g}, the gold answer '{sample.answer}' {gold:.3g}"
                )
            else:
                problems += self._not_full(sample, scored)
        return problems

    def _not_full(self, sample: Sample, scored: ScoredGroup) -> list[str]:
        """Built-in columns have the maximum 1: the gold answer must reach it, or parser and data disagree."""
        from vlmrl.protocols import reward as registry

        out: list[str] = []
        for (name, _, _), value in zip(self.columns, scored.scores.rewards_GK[0], strict=True):
            entry = registry.get(name) if name in registry.names() else None
            own = entry is not None and entry.function.__module__.startswith("vlmrl.")
            if own and value is not None and value < 1 - 1e-9:
                out.append(
                    f"row '{sample.id}' ({sample.source}): reward '{name}' gives its gold answer '{sample.answer}' {value:.3g} instead of 1"
                )
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"window": self.window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"window"}:
            raise CheckpointError(f"reward runner state has keys {sorted(state)}, expected ['window']")
        self.window = list(state["window"])


def contract_problem(returned: Any, n: int) -> str | None:
    """What is wrong with a reward's return value for `n` rollouts; None if it is one finite real number or None each."""
    if isinstance(returned, str | bytes) or not isinstance(returned, Sequence):
        return f"returned {type(returned).__name__}, expected a list with one number or None per rollout"
    if len(returned) != n:
        return f"returned {len(returned)} values for {n} rollouts"
    for i, value in enumerate(returned):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"value {i} is {type(value).__name__} {value!r}, expected a float or None"
        if not abs(value) <= sys.float_info.max:  # also NaN, and integers that no float can hold
            return f"value {i} is not a finite float; return None where it cannot be judged"
    return None


def _group(sample: Sample, template: str, texts: Sequence[str]) -> Group:
    """A group of given texts, without token ids: rewards read text."""
    prompt = Prompt(sample=sample, ids=(), media=(), spans=(), template=template)
    rollouts = tuple(
        Rollout(k=k, ids=(), logprobs=(), text=text, finish="stop", policy_version=0, provenance="ground_truth")
        for k, text in enumerate(texts)
    )
    return Group(id=f"self_test/{sample.id}", prompt=prompt, rollouts=rollouts)
