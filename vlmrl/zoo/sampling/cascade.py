"""Sampler `cascade` (Cascade RL): one domain after another instead of a mixture. Nemotron-Cascade, arXiv:2512.13607 (abstract read).

In the paper each domain is a training stage of its own, with its own verifier, length limit and learning rate; `stages` of a recipe
are that. This sampler is the part of it that needs nothing but an order of rows: within one stage, each domain for `epochs` shuffled
passes, then the next; the last goes on as long as the stage does. A batch may cross the edge of two domains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.base import Stream, check_ids, check_state, digest_of_groups
from vlmrl.sampling.info import SampleInfo, group_by
from vlmrl.types import PlannedPrompt


@sampler("cascade", needs=("rows",), paper="arXiv:2512.13607")
def cascade(
    rows: Sequence[SampleInfo], seed: int, *, order: tuple[str, ...], epochs: tuple[float, ...] = (1.0,), by: str = "task"
) -> PromptSampler:
    """Domains in `order`, each for its number of `epochs` (one for all, or one per domain)."""
    return CascadeSampler(rows, seed, order=order, epochs=epochs, by=by)


class CascadeSampler:
    """A position in the row of domains; nothing else is state."""

    def __init__(self, rows: Sequence[SampleInfo], seed: int, *, order: Sequence[str], epochs: Sequence[float], by: str):
        """
        Raises:
            ValueError: no rows, an id twice, a row without the tag, an order that does not name each domain once, or bad `epochs`.
        """
        check_ids([row.id for row in rows], "cascade")
        domains = group_by(rows, by, "cascade")
        if sorted(order) != sorted(domains):
            raise ValueError(f"sampler 'cascade': order {list(order)} must name each {by} of the rows once; they have {sorted(domains)}")
        if len(epochs) not in (1, len(order)) or any(not math.isfinite(e) or e <= 0 for e in epochs):
            raise ValueError(
                f"sampler 'cascade': epochs {list(epochs)} must be one positive number, or one for each of {len(order)} domains"
            )
        passes = list(epochs) * (len(order) if len(epochs) == 1 else 1)
        lengths = [math.ceil(e * len(domains[name])) for name, e in zip(order, passes, strict=True)]
        self._starts = [0, *accumulate(lengths[:-1])]
        self._streams = [Stream(domains[name], seed, "cascade", name) for name in order]
        self._position = 0
        self._digest = digest_of_groups((name, sample_id) for name in order for sample_id in domains[name])

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """The next `prompts` samples, `rollouts` of each. The ledger is not read."""
        out: list[PlannedPrompt] = []
        for position in range(self._position, self._position + prompts):
            domain = max(i for i, start in enumerate(self._starts) if start <= position)
            sample_id, epoch = self._streams[domain].at(position - self._starts[domain])
            out.append(PlannedPrompt(sample_id=sample_id, num_generations=rollouts, epoch=epoch))
        self._position += prompts
        return out

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position, "samples": self._digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: unknown or missing keys, a position that is none, or other samples or domains than in the stored run."""
        check_state(state, self.state_dict(), "cascade")
        self._position = state["position"]
