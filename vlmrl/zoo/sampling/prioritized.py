"""Sampler `prioritized` (SPO): rows whose outcome is uncertain come more often. arXiv:2509.13232, curriculum and value tracker.

Tracker per prompt: v = a / (a + b). After a reward r in [0, 1]: a <- rho a + r, b <- rho b + 1 - r, which is an average of r with rate
1 / (rho (a + b) + 1). A prompt is drawn with weight sqrt(v (1 - v)) / (a + b)^g + eps. Without offline answers a = b = 0.5.

Ours: the paper sets rho = 2^(-D / D_half), clipped to [0.875, 0.96], from the drift D of the policy since the prompt's last visit; a
sampler sees no policy, so the steps since then stand for D (`half_life` in steps, 50 is our guess). All rewards of a visit come after
one decay. Rewards are the ledger's passes, or with `signal="reward"` the group's reward sum clipped to [0, G]. Drawn without
replacement within a plan, samples in flight last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from vlmrl import rng
from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.base import InFlight, News, best, check_entries, check_ids, check_state, digest, first_places, looked_at
from vlmrl.sampling.ledger import Ledger
from vlmrl.types import PlannedPrompt
from vlmrl.zoo.sampling.vade import Signal, right

START = 0.5
"""a and b of a prompt without answers."""


def decay(drift: float, half: float, *, low: float = 0.875, high: float = 0.96) -> float:
    """rho = 2^(-drift / half), clipped to [low, high]."""
    return min(max(2.0 ** (-drift / half), low), high)


def track(a: float, b: float, *, right: float, count: int, rho: float) -> tuple[float, float]:
    """The tracker (a, b) after `count` answers of which `right` (in [0, count]) were right."""
    return rho * a + right, rho * b + count - right


def weight(a: float, b: float, *, g: float, eps: float) -> float:
    """sqrt(v (1 - v)) / (a + b)^g + eps with v = a / (a + b): positive for eps > 0."""
    v = a / (a + b)
    return math.sqrt(v * (1 - v)) / (a + b) ** g + eps


def race(weights: np.ndarray, uniforms: np.ndarray, k: int | None = None) -> list[int]:
    """The first k places (by default all) of a draw without replacement with chances in proportion to positive `weights`, [n] each;
    `uniforms` in [0, 1). Exponential clocks: the smallest of -log(1 - u) / w goes first."""
    return first_places(-np.log1p(-uniforms) / weights, len(weights) if k is None else k)


@sampler("prioritized", paper="arXiv:2509.13232")
def prioritized(
    sample_ids: Sequence[str],
    seed: int,
    *,
    g: float = 0.0,
    eps: float = 0.05,
    half_life: float = 50.0,
    signal: Literal["passes", "reward"] = "passes",
) -> PromptSampler:
    """Prompts drawn by the deviation of their outcome, sqrt(v (1 - v)) / N^g + eps."""
    return PrioritizedSampler(sample_ids, seed, g=g, eps=eps, half_life=half_life, signal=signal)


class PrioritizedSampler:
    """State: a tracker per seen sample, what was read of the ledger, and the number of plans. The order of the ids is irrelevant."""

    def __init__(self, sample_ids: Sequence[str], seed: int, *, g: float, eps: float, half_life: float, signal: Signal):
        """
        Raises:
            ValueError: no samples, an id twice, or an argument outside its range.
        """
        if not 0 <= g <= 1 or eps <= 0 or half_life <= 0:
            raise ValueError(f"sampler 'prioritized': needs g {g} in [0, 1], eps {eps} > 0 and half_life {half_life} > 0")
        self._ids = sorted(check_ids(sample_ids, "prioritized"))
        self._digest = digest(self._ids)
        self._seed, self._g, self._eps, self._half_life = seed, g, eps, half_life
        self._signal: Signal = signal
        self._news, self._flying = News(self._ids), InFlight()
        self._tracker: dict[str, tuple[float, float, int]] = {}
        self._plans = self._planned = 0
        self._place = {sample_id: place for place, sample_id in enumerate(self._ids)}
        self._weight_N = np.full(len(self._ids), self._worth(START, START))

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """`prompts` samples drawn by weight, `rollouts` of each."""
        self._learn(ledger)
        n = len(self._ids)
        uniforms = rng.generator(self._seed, "prioritized", self._plans).random(n)
        last = [self._flying.busy(ledger)]
        ranked = race(self._weight_N, uniforms, looked_at(prompts, last, n))
        chosen = best([self._ids[i] for i in ranked], last, prompts)
        out = [PlannedPrompt(sample_id=k, num_generations=rollouts, epoch=(self._planned + i) // n) for i, k in enumerate(chosen)]
        self._flying.add(chosen, ledger)
        self._plans += 1
        self._planned += prompts
        return out

    def weight_of(self, sample_id: str) -> float:
        """Current weight of a sample."""
        a, b, _ = self._tracker.get(sample_id, (START, START, 0))
        return self._worth(a, b)

    def _worth(self, a: float, b: float) -> float:
        """Weight of a tracker."""
        return weight(a, b, g=self._g, eps=self._eps)

    def _learn(self, ledger: Ledger) -> None:
        for news in self._news.read(ledger):
            if news.count == 0:
                continue
            a, b, step = self._tracker.get(news.sample_id, (START, START, news.step))
            gain = right(news, self._signal)
            rho = decay(news.step - step, self._half_life)
            self._tracker[news.sample_id] = (*track(a, b, right=gain, count=news.count, rho=rho), news.step)
            self._weight_N[self._place[news.sample_id]] = self.weight_of(news.sample_id)

    def state_dict(self) -> dict[str, Any]:
        return {
            "plans": self._plans,
            "planned": self._planned,
            "tracker": {k: list(v) for k, v in self._tracker.items()},
            "news": self._news.state_dict(),
            "in_flight": self._flying.state_dict(),
            "samples": self._digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: unknown or missing keys, values that are none, or other samples than in the stored run."""
        check_state(state, self.state_dict(), "prioritized")
        check_entries(state["tracker"], self._ids, 3, "state of sampler 'prioritized': tracker")
        self._news.load_state_dict(state["news"])
        self._flying.load_state_dict(state["in_flight"], self._ids)
        self._tracker = {k: (float(a), float(b), int(step)) for k, (a, b, step) in state["tracker"].items()}
        self._plans, self._planned = state["plans"], state["planned"]
        self._weight_N[:] = self._worth(START, START)
        for sample_id in self._tracker:
            self._weight_N[self._place[sample_id]] = self.weight_of(sample_id)
