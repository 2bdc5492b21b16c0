"""Sampler `mixture`: weighted sources, a fixed share of the prompts from each task (or from each value of a tag).

The next prompt comes from the source that is furthest behind its share (ties by name), so that every batch has the mixture's
proportions and not only the long run: after t prompts each source is within one of `share * t` for two sources, within their number
for more. Within a source the rows come in shuffled epochs. No paper; the order is a function of the seed and the position alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.errors import CheckpointError
from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.base import Stream, check_ids, check_state, digest_of_groups
from vlmrl.sampling.info import SampleInfo, group_by
from vlmrl.types import PlannedPrompt


@sampler("mixture", needs=("rows",))
def mixture(rows: Sequence[SampleInfo], seed: int, *, weights: dict[str, float] | None = None, by: str = "task") -> PromptSampler:
    """Fixed shares of prompts per task or tag value; without `weights`, shares by size. A source of weight 0 is left out."""
    return MixtureSampler(rows, seed, weights=weights, by=by)


class MixtureSampler:
    """State: how many prompts came from each source."""

    def __init__(self, rows: Sequence[SampleInfo], seed: int, *, weights: Mapping[str, float] | None, by: str):
        """
        Raises:
            ValueError: no rows, an id twice, a row without the tag, or weights that do not fit the sources.
        """
        check_ids([row.id for row in rows], "mixture")
        sources = group_by(rows, by, "mixture")
        given = {name: float(len(ids)) for name, ids in sources.items()} if weights is None else dict(weights)
        if set(given) != set(sources):
            raise ValueError(
                f"sampler 'mixture': weights must name each {by} once; without a weight: {sorted(set(sources) - set(given))}, "
                f"without rows: {sorted(set(given) - set(sources))}"
            )
        if any(not math.isfinite(w) or w < 0 for w in given.values()) or sum(given.values()) <= 0:
            raise ValueError(f"sampler 'mixture': weights {given} must be finite, not negative, and not all 0")
        total = sum(given.values())
        self.shares = {name: given[name] / total for name in sorted(given) if given[name] > 0}
        self._streams = {name: Stream(sources[name], seed, "mixture", name) for name in self.shares}
        self._drawn = dict.fromkeys(self.shares, 0)
        self._digest = digest_of_groups((name, sample_id) for name in self.shares for sample_id in sources[name])

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """The next `prompts` samples, `rollouts` of each. The ledger is not read."""
        out: list[PlannedPrompt] = []
        for _ in range(prompts):
            t = sum(self._drawn.values()) + 1
            # min takes the first of equals, and names are sorted
            name = min(self.shares, key=lambda source: self._drawn[source] - self.shares[source] * t)
            sample_id, epoch = self._streams[name].at(self._drawn[name])
            self._drawn[name] += 1
            out.append(PlannedPrompt(sample_id=sample_id, num_generations=rollouts, epoch=epoch))
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": dict(self._drawn), "samples": self._digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: unknown or missing keys, counts that are none, or other samples or sources than in the stored run."""
        check_state(state, self.state_dict(), "mixture")
        drawn = state["drawn"]
        if set(drawn) != set(self._drawn) or any(type(n) is not int or n < 0 for n in drawn.values()):
            raise CheckpointError(f"state of sampler 'mixture': drawn {drawn} does not count the sources {sorted(self._drawn)}")
        self._drawn = {name: drawn[name] for name in self._drawn}
