"""Replay of the policy's own successes: rows of an earlier group of the same sample join the group. After ExGRPO, arXiv:2510.02245.

A group of G sampled rows gets up to `rows` more from the newest entry of its sample in a `SampleBuffer`: the best rewarded ones, of at
least `success_at`, and among equals the most likely when they were sampled (the paper takes those of least entropy). They keep their
ids and log-probs, which are the denominators of their ratios (`Rollout.old_from_sampler`), and are `replay` rows: no logged reward,
length or ledger row counts them again.

An entry is used only for the media, question and gold answer that it was sampled and scored for.

Freshness: an entry older than `max_age` policy versions is never used; one that was used in `max_uses` groups has left. What enters:
the sampled rows of groups with non-zero advantages; first in, first out at `capacity` groups.

Ours: the choice of rows and all numbers. The memory is read while groups are completed, in whatever order they end, and written once per
step by `observe`, from the groups alone. So a step that is replayed from its journal leaves the same memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from vlmrl.errors import CheckpointError
from vlmrl.protocols import strategy
from vlmrl.types import Group, Prompt, Rollout, ScoredGroup, digest
from vlmrl.zoo.sampling.buffer import Entry, SampleBuffer


def sampled_rows(scored: ScoredGroup, *, priority: float) -> Entry | None:
    """The rows of a group that the policy sampled, as an entry; None without any, or without signal."""
    places = [i for i, r in enumerate(scored.group.rollouts) if r.on_policy]
    if not places or not priority > 0:
        return None
    return Entry(
        sample_id=scored.group.prompt.sample.id,
        inputs=digest(scored.group.prompt.inputs()),
        version=scored.group.rollouts[places[0]].policy_version,
        priority=priority,
        rollouts=tuple(scored.group.rollouts[i] for i in places),
        scores=dataclasses.replace(scored.scores, rewards_GK=tuple(scored.scores.rewards_GK[i] for i in places), reasons={}),
    )


class Replay:
    """See the module docstring."""

    def __init__(self, buffer: SampleBuffer, *, rows: int, max_age: int, success_at: float):
        if rows < 1:
            raise ValueError(f"strategy 'replay': rows is {rows}, must be at least 1")
        self.buffer, self.rows, self.max_age, self.success_at = buffer, rows, max_age, success_at

    def sampled(self, rollouts: int) -> int:
        return rollouts

    def complete(self, group: Group, score: Callable[[Group], Sequence[float | None]], tokenize: Callable[[str], Sequence[int]]) -> Group:
        entry = self.entry(group.prompt, group.rollouts[0].policy_version)
        if entry is None:
            return group
        values = {i: v for i, v in enumerate(entry.scores.total()) if v is not None and v >= self.success_at}
        best = sorted(values, key=lambda i: (-values[i], -_mean_logp(entry.rollouts[i]), i))[: self.rows]
        first = len(group.rollouts)
        rows = tuple(dataclasses.replace(entry.rollouts[i], k=first + n, provenance="replay") for n, i in enumerate(best))
        return dataclasses.replace(group, rollouts=(*group.rollouts, *rows))

    def entry(self, prompt: Prompt, version: int) -> Entry | None:
        """The newest entry of a prompt's sample that is fresh enough for a policy of this version; None without any.

        An entry that was sampled or scored for other media, another question or another gold answer of the row is none of this prompt.
        """
        own = [e for e in self.buffer.entries if e.sample_id == prompt.sample.id and 0 <= version - e.version <= self.max_age]
        now = digest(prompt.inputs()) if own else ""
        fresh = [e for e in own if e.inputs == now]
        return fresh[-1] if fresh else None

    def observe(self, groups: Sequence[ScoredGroup], priorities: Sequence[float], *, version: int) -> None:
        """Count what was replayed, forget what is too old for `version`, and add the step's own groups. See `RememberingStrategy`."""
        used = [(g.group.prompt.sample.id, _versions(g.group.rollouts)) for g in groups]
        self.buffer.count_uses([(sample_id, of) for sample_id, versions in used for of in sorted(versions)])
        self.buffer.evict(version)
        entries = [sampled_rows(g, priority=p) for g, p in zip(groups, priorities, strict=True)]
        self.buffer.push([e for e in entries if e is not None])

    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: other keys, or the buffer's state does not fit."""
        if set(state) != {"buffer"}:
            raise CheckpointError(f"strategy 'replay': state has keys {sorted(state)}, needs ['buffer']; it is of another version")
        self.buffer.load_state_dict(state["buffer"])


def _mean_logp(rollout: Rollout) -> float:
    return math.fsum(rollout.logprobs) / max(1, len(rollout.logprobs))


def _versions(rollouts: Sequence[Rollout]) -> set[int]:
    """Policy versions of the replayed rows."""
    return {r.policy_version for r in rollouts if r.provenance == "replay"}


@strategy("replay", paper="arXiv:2510.02245", old_from_sampler=True)
def replay(*, rows: int = 1, capacity: int = 256, max_age: int = 8, max_uses: int = 2, success_at: float = 0.5, seed: int = 0) -> Replay:
    """Up to `rows` earlier successes of the same sample join each group, with their stored log-probs.

    Raises:
        ValueError: a number is out of range.
    """
    buffer = SampleBuffer(capacity=capacity, seed=seed, max_age=max_age, max_uses=max_uses)
    return Replay(buffer, rows=rows, max_age=max_age, success_at=success_at)
