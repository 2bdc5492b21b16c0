"""Sampler `vas` (variance-aware sampling, MMR1): part of each batch goes to prompts that promise reward variance. arXiv:2509.21268.

Variance promotion score: alpha * outcome variance + beta * trajectory diversity. A share of the batch is drawn with replacement in
proportion to the scores (min-max normalised over the data), the rest comes in shuffled epochs. Scores are refreshed every `refresh`
steps and may be smoothed: w <- m w_old + (1 - m) w_new.

Ours: the paper scores the whole data anew with the current policy (which can cost more than training); here P is the pass rate of the
sample's latest training group, which fades towards 0.5 with the half-life `half_life` in steps (100 is our guess). Outcome variance is
4 P (1 - P), so that both parts lie in [0, 1]. Diversity is the ledger's (`diversity`, larger is more diverse, which the released code
has the wrong way round); a sample without gets the mean of the others. Without differences all weights are equal. `momentum` 0 is
none; 1 would never learn and is refused. The weighted samples are spread evenly over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vlmrl import rng
from vlmrl.errors import CheckpointError
from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.base import News, Stream, check_entries, check_ids, check_state, digest
from vlmrl.sampling.ledger import Ledger
from vlmrl.types import PlannedPrompt


def score(rate: np.ndarray, diversity: np.ndarray, *, alpha: float, beta: float) -> np.ndarray:
    """alpha * 4 P (1 - P) + beta * diversity; all in [0, 1] and of one shape."""
    return alpha * 4 * rate * (1 - rate) + beta * diversity


def normalise(scores: np.ndarray) -> np.ndarray:
    """Scaled to [0, 1] by smallest and largest; all 1 where they do not differ."""
    low, high = float(scores.min()), float(scores.max())
    return (scores - low) / (high - low) if high - low > 1e-12 else np.ones_like(scores)


def draw(weights: np.ndarray, uniforms: np.ndarray) -> list[int]:
    """Places drawn with replacement in proportion to `weights` (not negative), one per number of `uniforms` in [0, 1). A place of
    weight 0 never comes, unless all have it: then all are equal."""
    edges = np.cumsum(weights if weights.sum() > 0 else np.ones_like(weights))
    return np.minimum(np.searchsorted(edges, uniforms * edges[-1], side="right"), np.flatnonzero(np.diff(edges, prepend=0.0))[-1]).tolist()


@sampler("vas", paper="arXiv:2509.21268", weighs_difficulty=True)
def vas(
    sample_ids: Sequence[str],
    seed: int,
    *,
    share: float = 0.5,
    alpha: float = 0.8,
    beta: float = 0.2,
    refresh: int = 4,
    momentum: float = 0.0,
    half_life: float = 100.0,
) -> PromptSampler:
    """A `share` of each batch by outcome variance and diversity, the rest uniform."""
    return VasSampler(sample_ids, seed, share=share, alpha=alpha, beta=beta, refresh=refresh, momentum=momentum, half_life=half_life)


class VasSampler:
    """State: position of the uniform part, weights and when they are due, latest pass rate per seen sample."""

    def __init__(
        self,
        sample_ids: Sequence[str],
        seed: int,
        *,
        share: float,
        alpha: float,
        beta: float,
        refresh: int,
        momentum: float,
        half_life: float,
    ):
        """
        Raises:
            ValueError: no samples, an id twice, or an argument outside its range.
        """
        if not 0 <= share <= 1 or not 0 <= momentum < 1:
            raise ValueError(f"sampler 'vas': share {share} must lie in [0, 1] and momentum {momentum} in [0, 1)")
        if alpha < 0 or beta < 0 or refresh < 1 or half_life <= 0:
            raise ValueError(
                f"sampler 'vas': needs alpha {alpha} and beta {beta} >= 0, refresh {refresh} >= 1 and half_life {half_life} > 0"
            )
        self._ids = check_ids(sample_ids, "vas")
        self._order = sorted(self._ids)
        self._seed, self._share, self._alpha, self._beta = seed, share, alpha, beta
        self._refresh, self._momentum, self._half_life = refresh, momentum, half_life
        self._stream, self._news = Stream(self._ids, seed), News(self._ids)
        self._rates: dict[str, tuple[float, int]] = {}
        self._weights: list[float] = []
        self._plans = self._position = self._due = 0

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """The next `prompts` samples, `rollouts` of each."""
        self._learn(ledger)
        weighted = math.floor(self._share * prompts + 1e-9)
        uniforms = rng.generator(self._seed, "vas", self._plans).random(weighted)
        chosen = [self._order[i] for i in draw(np.array(self.weights()), uniforms)]
        out: list[PlannedPrompt] = []
        for i in range(prompts):
            if (i + 1) * weighted // prompts > i * weighted // prompts:
                sample_id, epoch = chosen.pop(0), self._position // len(self._ids)
            else:
                sample_id, epoch = self._stream.at(self._position)
                self._position += 1
            out.append(PlannedPrompt(sample_id=sample_id, num_generations=rollouts, epoch=epoch))
        self._plans += 1
        return out

    def weights(self) -> list[float]:
        """Current weight of each sample, in order of id."""
        return self._weights or [1.0] * len(self._order)

    def _learn(self, ledger: Ledger) -> None:
        for news in self._news.read(ledger):
            if news.count:
                self._rates[news.sample_id] = (news.passes / news.count, news.step)
        clock = self._news.clock
        if clock < self._due:
            return
        pairs = [self._rates.get(sample_id, (0.5, clock)) for sample_id in self._order]
        rates = np.array([0.5 + (rate - 0.5) * 2.0 ** ((step - clock) / self._half_life) for rate, step in pairs])
        measured = [ledger.row(sample_id).diversity for sample_id in self._order]
        known = [d for d in measured if d is not None]
        neutral = math.fsum(known) / len(known) if known else 0.0
        diversity = np.array([neutral if d is None else d for d in measured])
        fresh = normalise(score(rates, diversity, alpha=self._alpha, beta=self._beta))
        m = self._momentum if self._weights else 0.0
        self._weights = [m * old + (1 - m) * new for old, new in zip(self.weights(), fresh.tolist(), strict=True)]
        self._due = clock + self._refresh

    def state_dict(self) -> dict[str, Any]:
        return {
            "plans": self._plans,
            "position": self._position,
            "due": self._due,
            "weights": list(self._weights),
            "rates": {k: list(v) for k, v in self._rates.items()},
            "news": self._news.state_dict(),
            "samples": digest(self._ids),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: unknown or missing keys, values that are none, or other samples than in the stored run."""
        check_state(state, self.state_dict(), "vas")
        check_entries(state["rates"], self._ids, 2, "state of sampler 'vas': rates")
        weights = state["weights"]
        if len(weights) not in (0, len(self._ids)) or any(not isinstance(w, float) or w < 0 for w in weights):
            raise CheckpointError(f"state of sampler 'vas': {len(weights)} weights for {len(self._ids)} samples, or a negative one")
        self._news.load_state_dict(state["news"])
        self._rates = {k: (float(rate), int(step)) for k, (rate, step) in state["rates"].items()}
        self._weights = list(weights)
        self._plans, self._position, self._due = state["plans"], state["position"], state["due"]
