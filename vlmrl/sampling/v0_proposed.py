"""Sampler `v0_proposed`: prompts whose predicted success is open, also of prompts that were never tried. After V_0, arXiv:2602.03584.

V_0 foretells a policy's success on a prompt from its record on others, without a parameter that is trained: budgets go where the outcome is
open. The paper's model reads embeddings of the prompts with a network for tables. Ours, as neither is at hand: a row is its task and its
tags (scalars of `meta`, `answer_type`), and with P the share of right answers over all and P_t that of rows with tag t, drawn towards P by
as many answers as `strength`,

    logit p = logit P + mean over the row's tags t of (logit P_t - logit P)

The row's own answers then count beside `strength` answers at p. Prompts are drawn in proportion to p (1 - p) + eps. A tag that every row or
a single row has says nothing. The record fades as in `prioritized`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.info import SampleInfo
from vlmrl.sampling.ledger import Ledger
from vlmrl.sampling.prioritized import START, PrioritizedSampler
from vlmrl.sampling.vade import Signal


@sampler("v0_proposed", paper="arXiv:2602.03584", needs=("rows",), weighs_difficulty=True)
def v0_proposed(
    rows: Sequence[SampleInfo],
    seed: int,
    *,
    strength: float = 8.0,
    eps: float = 0.02,
    half_life: float = 50.0,
    signal: Literal["passes", "reward"] = "passes",
) -> PromptSampler:
    """Prompts drawn by p (1 - p), p the success that their tags and their own answers foretell.

    Raises:
        ValueError: a strength or eps that is not positive, or what `prioritized` raises.
    """
    return PredictingSampler(rows, seed, strength=strength, eps=eps, half_life=half_life, signal=signal)


def logit(p_N: np.ndarray) -> np.ndarray:
    return np.log(p_N) - np.log1p(-p_N)


class PredictingSampler(PrioritizedSampler):
    """`prioritized` with weights by prediction; its state is that sampler's, as predictions follow from the trackers."""

    def __init__(self, rows: Sequence[SampleInfo], seed: int, *, strength: float, eps: float, half_life: float, signal: Signal):
        if strength <= 0 or eps <= 0:
            raise ValueError(f"sampler 'v0_proposed': needs strength {strength} > 0 and eps {eps} > 0")
        self._strength = strength
        super().__init__([row.id for row in rows], seed, g=0.0, eps=eps, half_life=half_life, signal=signal)
        pairs = {row.id: {("task", row.task), *(("tag " + name, value) for name, value in row.tags.items())} for row in rows}
        holders: dict[tuple[str, str], list[int]] = {}
        for sample_id, tags in pairs.items():
            for tag in tags:
                holders.setdefault(tag, []).append(self._place[sample_id])
        telling = [places for tag, places in sorted(holders.items()) if 1 < len(places) < len(rows)]
        self._tag_F = np.repeat(np.arange(len(telling)), [len(places) for places in telling]).astype(np.int64)
        self._row_F = np.array([place for places in telling for place in places], dtype=np.int64)
        self._tags = len(telling)
        self._weight_N[:] = self._predicted()

    def weight_of(self, sample_id: str) -> float:
        """Current weight of a sample."""
        return float(self._weight_N[self._place[sample_id]])

    def _success(self) -> np.ndarray:
        """p of each sample, [N]: float64."""
        right_N, wrong_N = (np.zeros(len(self._ids)) for _ in range(2))
        for sample_id, (a, b, _) in self._tracker.items():
            right_N[self._place[sample_id]], wrong_N[self._place[sample_id]] = a, b
        everybody = (right_N.sum() + START) / (right_N.sum() + wrong_N.sum() + 2 * START)
        of_tag = [np.bincount(self._tag_F, weights=value_N[self._row_F], minlength=self._tags) for value_N in (right_N, wrong_N)]
        p_of_tag = (of_tag[0] + self._strength * everybody) / (of_tag[0] + of_tag[1] + self._strength)
        gap_of_tag = logit(p_of_tag) - logit(np.array(everybody))
        total_N = np.bincount(self._row_F, weights=gap_of_tag[self._tag_F], minlength=len(self._ids))
        tags_N = np.bincount(self._row_F, minlength=len(self._ids))
        foretold_N = 1 / (1 + np.exp(-(logit(np.array(everybody)) + total_N / np.maximum(tags_N, 1))))
        return (right_N + self._strength * foretold_N) / (right_N + wrong_N + self._strength)

    def _predicted(self) -> np.ndarray:
        """Weight of each sample, [N]."""
        p_N = self._success()
        return p_N * (1 - p_N) + self._eps

    def _learn(self, ledger: Ledger) -> None:
        before = dict(self._tracker)
        super()._learn(ledger)
        if self._tracker != before:
            self._weight_N[:] = self._predicted()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: unknown or missing keys, values that are none, or other samples than in the stored run."""
        super().load_state_dict(state)
        self._weight_N[:] = self._predicted()
