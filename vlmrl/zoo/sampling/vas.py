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
from vlmrl.sampling.base import News, Powers, Stream, Writes, check_entries, check_ids, check_state, digest
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
        self._digest = digest(self._ids)
        self._order = sorted(self._ids)
        self._seed, self._share, self._alpha, self._beta = seed, share, alpha, beta
        self._refresh, self._momentum, self._half_life = refresh, momentum, half_life
        self._stream, self._news = Stream(self._ids, seed), News(self._ids)
        self._rates: dict[str, tuple[float, int]] = {}
        self._weight_N = np.empty(0)
        self._place = {sample_id: place for place, sample_id in enumerate(self._order)}
        self._rate_N, self._step_N = np.full(len(self._order), 0.5), np.full(len(self._order), -1)
        self._diversity_N = np.full(len(self._order), np.nan)
        self._writes = Writes()
        self._fades = Powers(lambda age: 2.0 ** (-age / half_life))
        self._plans = self._position = self._due = 0

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """The next `prompts` samples, `rollouts` of each."""
        self._learn(ledger)
        weighted = math.floor(self._share * prompts + 1e-9)
        uniforms = rng.generator(self._seed, "vas", self._plans).random(weighted)
        chosen = [self._order[i] for i in draw(self._weights_now(), uniforms)]
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
        return self._weights_now().tolist()

    def _weights_now(self) -> np.ndarray:
        return self._weight_N if len(self._weight_N) else np.ones(len(self._order))

    def _learn(self, ledger: Ledger) -> None:
        for news in self._news.read(ledger):
            if news.count:
                self._keep(news.sample_id, news.passes / news.count, news.step)
        for sample_id in self._writes.read(ledger):
            if sample_id in self._place:
                measured = ledger.row(sample_id).diversity
                self._diversity_N[self._place[sample_id]] = np.nan if measured is None else measured
        clock = self._news.clock
        if clock < self._due:
            return
        fade_N = self._fades.of(np.where(self._step_N < 0, 0, clock - self._step_N))
        rate_N = 0.5 + (self._rate_N - 0.5) * fade_N
        known = self._diversity_N[~np.isnan(self._diversity_N)].tolist()
        neutral = math.fsum(known) / len(known) if known else 0.0
        diversity_N = np.where(np.isnan(self._diversity_N), neutral, self._diversity_N)
        fresh = normalise(score(rate_N, diversity_N, alpha=self._alpha, beta=self._beta))
        m = self._momentum if len(self._weight_N) else 0.0
        self._weight_N = m * self._weights_now() + (1 - m) * fresh
        self._due = clock + self._refresh

    def _keep(self, sample_id: str, rate: float, step: int) -> None:
        self._rates[sample_id] = (rate, step)
        place = self._place[sample_id]
        self._rate_N[place], self._step_N[place] = rate, step

    def state_dict(self) -> dict[str, Any]:
        return {
            "plans": self._plans,
            "position": self._position,
            "due": self._due,
            "weights": self._weight_N.tolist(),
            "rates": {k: list(v) for k, v in self._rates.items()},
            "news": self._news.state_dict(),
            "samples": self._digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: unknown or missing keys, values that are none, or other samples than in the stored run."""
        check_state(state, self.state_dict(), "vas")
        check_entries(state["rates"], self._ids, 2, "state of sampler 'vas': rates")
        weights = state["weights"]
        if len(weights) not in (0, len(self._ids)) or any(not isinstance(w, float) or w < 0 for w in weights):
            raise CheckpointError(f"state of sampler 'vas': {len(weights)} weights for {len(self._ids)} samples, or a negative one")
        self._news.load_state_dict(state["news"])
        self._rates = {}
        self._rate_N[:], self._step_N[:] = 0.5, -1
        for sample_id, (rate, step) in state["rates"].items():
            self._keep(sample_id, float(rate), int(step))
        self._weight_N = np.array(weights, dtype=np.float64)
        self._diversity_N[:] = np.nan
        self._writes = Writes()
        self._plans, self._position, self._due = state["plans"], state["position"], state["due"]
