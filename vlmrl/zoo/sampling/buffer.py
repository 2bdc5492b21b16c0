"""Selective sample buffer: past groups with a learning signal, to fill the places of groups without one. Skywork R1V2,
arXiv:2504.16656; which groups may enter is `algo.filter.selective_sample_buffer`.

From the report: samples with non-zero advantage are kept and come back with a chance that grows with |advantage|. Ours, because the
report gives neither sizes nor ages: whole groups are kept, with the mean |advantage| of their rows as priority; first in, first out
at `capacity`; an entry older than `max_age` policy versions or drawn `max_uses` times leaves; draws are without replacement, in
proportion to priority, and depend on (seed, step, sample, version) only; at most `max_share` of a batch is replaced.

What the trainer does with it: after the advantages of a step, `push` the kept groups; before the update, `draw(wanted(...))`, encode
each entry's prompt again from its sample id, take `Entry.replayed()` as its rollouts, and use their stored log-probs as the old ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl import rng
from vlmrl.errors import CheckpointError
from vlmrl.types import Guidance, Rollout, Scores


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One past group. The prompt is not kept: it is a function of the sample, and its hash tells whether it still is the same."""

    sample_id: str
    inputs: str
    """Hash of what it was sampled and scored for (`Prompt.inputs`)."""
    version: int
    """Policy version that sampled it."""
    priority: float
    """Mean |advantage| of its rows; positive."""
    rollouts: tuple[Rollout, ...]
    scores: Scores
    uses: int = 0

    def replayed(self) -> tuple[Rollout, ...]:
        """The rollouts, those of the policy marked as replay: they are no longer on-policy."""
        return tuple(dataclasses.replace(r, provenance="replay") if r.on_policy else r for r in self.rollouts)


_FIELDS = ("sample_id", "inputs", "version", "priority", "uses", "rollouts", "columns", "weights", "rewards_GK", "reasons")
_ROLLOUT = tuple(f.name for f in dataclasses.fields(Rollout))


def wanted(*, silent: int, batch: int, max_share: float = 0.5) -> int:
    """How many entries to draw: one per group without signal, at most `max_share` of the `batch` groups; 0 where all are informative."""
    if not 0 <= silent <= batch or not 0 <= max_share <= 1:
        raise ValueError(f"selective sample buffer: silent {silent} of batch {batch}, max_share {max_share} do not fit")
    return min(silent, math.floor(max_share * batch + 1e-9))


class SampleBuffer:
    """Entries in order of arrival. Stateful: JSON values, strict loading."""

    def __init__(self, *, capacity: int, seed: int, max_age: int = 8, max_uses: int = 2):
        """`capacity` in groups; `max_age` in policy versions.

        Raises:
            ValueError: a number below its minimum.
        """
        if capacity < 1 or max_age < 0 or max_uses < 1:
            raise ValueError(f"selective sample buffer: needs capacity {capacity} >= 1, max_age {max_age} >= 0, max_uses {max_uses} >= 1")
        self._capacity, self._seed, self._max_age, self._max_uses = capacity, seed, max_age, max_uses
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Oldest first."""
        return tuple(self._entries)

    def push(self, entries: Sequence[Entry]) -> None:
        """Add groups; the oldest leave when there are too many.

        Raises:
            ValueError: a priority is not positive and finite (the group has no signal), or the group is empty. Nothing is added then.
        """
        for entry in entries:
            if not (math.isfinite(entry.priority) and entry.priority > 0) or not entry.rollouts:
                raise ValueError(
                    f"selective sample buffer: group of sample '{entry.sample_id}' has {len(entry.rollouts)} rollouts and priority "
                    f"{entry.priority}; push only groups with non-zero advantages"
                )
        self._entries = [*self._entries, *entries][-self._capacity :]

    def evict(self, version: int) -> int:
        """Forget what is too old for a policy of this version; how many."""
        before = len(self._entries)
        self._entries = [e for e in self._entries if version - e.version <= self._max_age]
        return before - len(self._entries)

    def draw(self, n: int, *, step: int, version: int, without: frozenset[str] = frozenset()) -> list[Entry]:
        """Up to `n` different entries in proportion to priority, never a stale one, never a sample in `without` (those of the fresh
        batch), and one group per sample. Counts the use; an entry that was used up leaves the buffer."""
        self.evict(version)

        def clock(entry: Entry) -> float:
            u = rng.uniform(self._seed, "buffer", step, entry.sample_id, entry.version, entry.uses)
            return -math.log1p(-u) / entry.priority

        chosen: dict[str, int] = {}
        # the smaller of exponential clocks with rates in proportion to priority goes first: a draw without replacement
        for place in sorted(range(len(self._entries)), key=lambda i: (clock(self._entries[i]), i)):
            entry = self._entries[place]
            if len(chosen) < n and entry.sample_id not in without and entry.sample_id not in chosen:
                chosen[entry.sample_id] = place
        out = [self._entries[place] for place in chosen.values()]
        for place in chosen.values():
            self._entries[place] = dataclasses.replace(self._entries[place], uses=self._entries[place].uses + 1)
        self._entries = [e for e in self._entries if e.uses < self._max_uses]
        return out

    def count_uses(self, used: Sequence[tuple[str, int]]) -> None:
        """Count a use of each given (sample, version), without a draw; of several that fit, the newest. What was used up leaves.

        A pair that is not in the buffer (it left since) counts nothing.
        """
        for sample_id, version in used:
            places = [i for i, e in enumerate(self._entries) if (e.sample_id, e.version) == (sample_id, version)]
            if places:
                entry = self._entries[places[-1]]
                self._entries[places[-1]] = dataclasses.replace(entry, uses=entry.uses + 1)
        self._entries = [e for e in self._entries if e.uses < self._max_uses]

    def state_dict(self) -> dict[str, Any]:
        """Names of the fields, and one list of values per entry, oldest first."""
        return {
            "capacity": self._capacity,
            "fields": list(_FIELDS),
            "rollout": list(_ROLLOUT),
            "entries": [_pack(e) for e in self._entries],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace everything.

        Raises:
            CheckpointError: unknown or missing keys, other fields or capacity, or an entry that is none.
        """
        if set(state) != {"capacity", "fields", "rollout", "entries"}:
            raise CheckpointError(f"selective sample buffer: state has keys {sorted(state)}, needs capacity, entries, fields, rollout")
        before = [name for name in _ROLLOUT if name != "routes"]  # of checkpoints that were written before there were these
        if state["fields"] != list(_FIELDS) or state["rollout"] not in (list(_ROLLOUT), before):
            raise CheckpointError("selective sample buffer: the stored entries have other fields; the checkpoint is of another version")
        if state["capacity"] != self._capacity or len(state["entries"]) > self._capacity:
            raise CheckpointError(
                f"selective sample buffer: {len(state['entries'])} entries at capacity {state['capacity']}, this run has {self._capacity}"
            )
        try:
            self._entries = [_unpack(values, state["rollout"]) for values in state["entries"]]
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"selective sample buffer: an entry cannot be read: {error}") from error


def _pack(entry: Entry) -> list[Any]:
    rollouts = [[list(v) if isinstance(v, tuple) else v for v in dataclasses.astuple(r)] for r in entry.rollouts]
    s = entry.scores
    rewards = [list(row) for row in s.rewards_GK]
    own = [entry.sample_id, entry.inputs, entry.version, entry.priority, entry.uses]
    return [*own, rollouts, list(s.columns), list(s.weights), rewards, dict(s.reasons)]


def _unpack(values: Sequence[Any], names: Sequence[str]) -> Entry:
    named = dict(zip(_FIELDS, values, strict=True))
    scores = Scores(
        columns=tuple(named["columns"]),
        weights=tuple(named["weights"]),
        rewards_GK=tuple(tuple(row) for row in named["rewards_GK"]),
        reasons=dict(named["reasons"]),
    )
    own = {k: named[k] for k in ("sample_id", "inputs", "version", "priority", "uses")}
    return Entry(**own, rollouts=tuple(_rollout(row, names) for row in named["rollouts"]), scores=scores)


def _rollout(row: Sequence[Any], names: Sequence[str]) -> Rollout:
    named: dict[str, Any] = dict(zip(names, row, strict=True))
    named |= {name: tuple(named[name]) for name in ("ids", "logprobs", "routes") if name in named}
    if named["guidance"] is not None:
        fields = (f.name for f in dataclasses.fields(Guidance))
        named["guidance"] = Guidance(**dict(zip(fields, named["guidance"], strict=True)))
    return Rollout(**named)
