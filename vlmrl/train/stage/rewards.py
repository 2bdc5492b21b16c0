"""The rewards of a stage: they score its groups, and the ledger remembers what they said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.media.store import MediaStore
from vlmrl.protocols import RewardContext
from vlmrl.rewards.run.runner import MediaOnDemand, RewardRunner
from vlmrl.sampling.ledger import distinct_n
from vlmrl.train import dist
from vlmrl.train.memory_ledger import MemoryLedger
from vlmrl.train.state import RunState
from vlmrl.types import Group, ScoredGroup

SILENT_STEPS = 50
"""Steps in which a reward must score something; a shorter stage is asked at its end."""


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """See the module docstring. `steps`: of the stage; `memory`: what scoring takes of the device's memory."""

    runner: RewardRunner
    store: MediaStore
    state: RunState
    steps: int
    memory: MemoryLedger

    def score(self, group: Group, step: int) -> ScoredGroup:
        """Score a group of a step of the stage, counted from 0. Called in threads."""
        # what the policy saw, for rewards that look: nothing is opened a second time
        media = MediaOnDemand(tuple(handle.key for handle in group.prompt.media), self.store.get_key)
        with self.memory.phase("reward"):
            return self.runner.score(group, RewardContext(progress=step / self.steps, media=media))

    def observe(self, groups: Sequence[tuple[int, ScoredGroup]]) -> None:
        """Write the step's on-policy rewards and lengths of all ranks into the ledger, in plan order, and watch reward faults.

        Args:
            groups: (place in the plan, group) of this rank.

        Raises:
            DataError: a reward scored nothing in `SILENT_STEPS` steps, or fails too often.
        """
        self._watch([scored for _, scored in groups])
        seen: list[tuple[int, str, list[float], list[int], float | None]] = []
        for place, scored in groups:
            pairs = [(value, length) for value, length in scored.outcomes() if value is not None]
            answers = [rollout.ids for rollout in scored.group.rollouts if rollout.on_policy]
            sample_id, values, lengths = scored.group.prompt.sample.id, [v for v, _ in pairs], [n for _, n in pairs]
            seen.append((place, sample_id, values, lengths, distinct_n(answers)))
        # in plan order on every rank: ledgers stay equal to the last bit, also where a row stands in a step twice
        for _, sample_id, values, lengths, diversity in sorted((i for of_rank in dist.gather(seen) for i in of_rank), key=lambda i: i[0]):
            if values:
                self.state.ledger.observe(sample_id, rewards=values, lengths=lengths, step=self.state.global_step, diversity=diversity)

    def conclude(self) -> None:
        """Ask at the stage's end what `observe` asks after `SILENT_STEPS` steps.

        Raises:
            DataError: a reward scored nothing in a stage of fewer steps.
        """
        self.runner.require_verdicts(self.state.verdicts, self.state.step)

    def _watch(self, groups: Sequence[ScoredGroup]) -> None:
        # per reward: rollouts where it failed, rollouts, and those that it judged
        counts: dict[str, list[int]] = {name: [0, 0, 0] for name, _, _ in self.runner.columns}
        for scored in groups:
            if not scored.group.rollouts:  # a task none of whose attempts is whole
                continue
            for name, column in zip(scored.scores.columns, zip(*scored.scores.rewards_GK, strict=True), strict=True):
                counts[name][1] += len(column)
                counts[name][2] += sum(value is not None for value in column)
            for reason, n in scored.scores.reasons.items():
                counts[reason.split("/")[0]][0] += n
        merged: dict[str, list[int]] = {}
        for of_rank in dist.gather(counts):
            for name, added in of_rank.items():
                merged[name] = [a + b for a, b in zip(merged.get(name, [0, 0, 0]), added, strict=True)]
        self.runner.observe({name: [failed, total] for name, (failed, total, _) in merged.items()})
        verdicts = self.state.verdicts
        self.state.verdicts = {name: verdicts.get(name, 0) + judged for name, (_, _, judged) in merged.items()}
        if self.state.step + 1 == SILENT_STEPS:
            self.runner.require_verdicts(self.state.verdicts, SILENT_STEPS)
