"""Sampler `vade`: a decayed Beta posterior per sample, Thompson sampling, the most informative first. arXiv:2511.18902, read through the
authors' project page (text, framework figure and tables).

Per sample counts (a, b), 0 at first. Each plan draws p ~ Beta(a + 1, b + 1) and takes the samples with the largest p (1 - p)^2, which
peaks at p = 1/3. After a step with c of G right: a <- lam1 a + c, b <- lam1 b + G - c for a sample that was trained on, and
a <- lam2 a, b <- lam2 b for all others. The page's worked example (0.1 -> 1.02, 8.4 -> 8.68, 9.0 -> 8.991) gives lam1 0.2, lam2 0.999.

Ours: the prior of an unseen sample is uniform; decay is computed when a row is read, from the step of its last update, which gives the
same numbers; "right" is the ledger's pass, or, with `signal="reward"`, the group's reward sum clipped to [0, G]; a group that nobody
judged is no evidence; samples in flight come last, so that replacements and refills take the next best. `max_visits` bounds how
often a sample comes while as many prompts are planned as there are samples, because a mislabelled row with p near 1/3 would be a
favourite for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from vlmrl import rng
from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.base import (
    InFlight,
    News,
    Observed,
    Powers,
    best,
    check_entries,
    check_ids,
    check_state,
    digest,
    first_places,
    looked_at,
)
from vlmrl.sampling.ledger import Ledger
from vlmrl.types import PlannedPrompt

Signal = Literal["passes", "reward"]


def information(p: np.ndarray) -> np.ndarray:
    """p (1 - p)^2: expected learning value at pass rate p in [0, 1], same shape; at most 4/27."""
    return p * (1 - p) ** 2


def trained(count: float, gain: float, *, unselected: int, lam1: float, lam2: float) -> float:
    """A count after a step in which its sample was trained on, following `unselected` steps in which it was not."""
    return lam1 * count * lam2**unselected + gain


def right(news: Observed, signal: Signal) -> float:
    """How many of the observed answers count as right, in [0, news.count]."""
    return float(news.passes) if signal == "passes" else min(max(news.total, 0.0), float(news.count))


@sampler("vade", paper="arXiv:2511.18902", weighs_difficulty=True)
def vade(
    sample_ids: Sequence[str],
    seed: int,
    *,
    lam1: float = 0.2,
    lam2: float = 0.999,
    signal: Literal["passes", "reward"] = "passes",
    max_visits: int | None = None,
) -> PromptSampler:
    """Thompson sampling of p (1 - p)^2 from two-scale decayed pass counts."""
    return VadeSampler(sample_ids, seed, lam1=lam1, lam2=lam2, signal=signal, max_visits=max_visits)


class VadeSampler:
    """State: pass counts per seen sample, what was read of the ledger, and how much was planned. The order of the ids is irrelevant."""

    def __init__(self, sample_ids: Sequence[str], seed: int, *, lam1: float, lam2: float, signal: Signal, max_visits: int | None):
        """
        Raises:
            ValueError: no samples, an id twice, a decay outside [0, 1], or `max_visits` below 1.
        """
        if not 0 <= lam1 <= 1 or not 0 <= lam2 <= 1:
            raise ValueError(f"sampler 'vade': lam1 {lam1} and lam2 {lam2} must lie in [0, 1]")
        if max_visits is not None and max_visits < 1:
            raise ValueError(f"sampler 'vade': max_visits {max_visits} must be at least 1, or None")
        self._ids = sorted(check_ids(sample_ids, "vade"))
        self._digest = digest(self._ids)
        self._seed, self._lam1, self._lam2, self._max_visits = seed, lam1, lam2, max_visits
        self._signal: Signal = signal
        self._news, self._flying = News(self._ids), InFlight()
        self._counts: dict[str, tuple[float, float, int]] = {}
        self._plans = self._planned = 0
        self._visits: dict[str, int] = {}
        self._place = {sample_id: place for place, sample_id in enumerate(self._ids)}
        self._a_N, self._b_N = np.zeros(len(self._ids)), np.zeros(len(self._ids))
        self._step_N = np.full(len(self._ids), -1)
        self._fades = Powers(lambda age: lam2**age)

    def plan(self, ledger: Any, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """The `prompts` samples with the largest drawn information, `rollouts` of each."""
        self._learn(ledger)
        fade_N = self._fades.of(np.where(self._step_N < 0, 0, self._news.clock - self._step_N))
        draws = rng.generator(self._seed, "vade", self._plans).beta(self._a_N * fade_N + 1, self._b_N * fade_N + 1)
        out: list[PlannedPrompt] = []
        cap = self._max_visits
        last = [set[str]() if cap is None else {k for k, n in self._visits.items() if n >= cap}, self._flying.busy(ledger)]
        ranked = [self._ids[i] for i in first_places(-information(draws), looked_at(prompts, last, len(self._ids)))]
        for sample_id in best(ranked, last, prompts):
            epoch = self._planned // len(self._ids)
            self._planned += 1
            self._visits[sample_id] = self._visits.get(sample_id, 0) + 1
            if self._planned % len(self._ids) == 0:
                self._visits = {}
            out.append(PlannedPrompt(sample_id=sample_id, num_generations=rollouts, epoch=epoch))
        self._flying.add([p.sample_id for p in out], ledger)
        self._plans += 1
        return out

    def posterior(self, sample_id: str) -> tuple[float, float]:
        """(a, b) after the latest observed step, without the uniform prior's ones."""
        a, b, step = self._counts.get(sample_id, (0.0, 0.0, self._news.clock))
        fade = self._lam2 ** (self._news.clock - step)
        return a * fade, b * fade

    def _learn(self, ledger: Ledger) -> None:
        for news in self._news.read(ledger):
            if news.count == 0:
                continue
            a, b, step = self._counts.get(news.sample_id, (0.0, 0.0, news.step))
            unselected = max(0, news.step - 1 - step)
            gain = right(news, self._signal)
            self._counts[news.sample_id] = (
                trained(a, gain, unselected=unselected, lam1=self._lam1, lam2=self._lam2),
                trained(b, news.count - gain, unselected=unselected, lam1=self._lam1, lam2=self._lam2),
                news.step,
            )
            self._keep(news.sample_id)

    def _keep(self, sample_id: str) -> None:
        """Copy a sample's counts to the arrays from which plans are made."""
        place = self._place[sample_id]
        self._a_N[place], self._b_N[place], self._step_N[place] = self._counts[sample_id]

    def state_dict(self) -> dict[str, Any]:
        return {
            "plans": self._plans,
            "planned": self._planned,
            "visits": dict(self._visits),
            "counts": {k: list(v) for k, v in self._counts.items()},
            "news": self._news.state_dict(),
            "in_flight": self._flying.state_dict(),
            "samples": self._digest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError: unknown or missing keys, values that are none, or other samples than in the stored run."""
        check_state(state, self.state_dict(), "vade")
        check_entries(state["counts"], self._ids, 3, "state of sampler 'vade': counts")
        check_entries({k: [v] for k, v in state["visits"].items()}, self._ids, 1, "state of sampler 'vade': visits")
        self._news.load_state_dict(state["news"])
        self._flying.load_state_dict(state["in_flight"], self._ids)
        self._counts = {k: (float(a), float(b), int(step)) for k, (a, b, step) in state["counts"].items()}
        self._visits = {k: int(v) for k, v in state["visits"].items()}
        self._plans, self._planned = state["plans"], state["planned"]
        self._a_N[:], self._b_N[:], self._step_N[:] = 0.0, 0.0, -1
        for sample_id in self._counts:
            self._keep(sample_id)
