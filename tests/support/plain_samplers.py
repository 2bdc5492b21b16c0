"""The adaptive samplers as their descriptions say, row by row over all rows, without arrays and without memory of what changed: slow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vlmrl import rng
from vlmrl.sampling.ledger import Ledger
from vlmrl.sampling.uniform import uniform


def ranked_last(ranked: Sequence[str], last: Sequence[set[str]], k: int) -> list[str]:
    ordered = sorted(ranked, key=lambda name: max((i + 1 for i, group in enumerate(last) if name in group), default=0))
    return [ordered[i % len(ordered)] for i in range(k)]


class Plain:
    """What the three share: differences of ledger rows, and what is in flight."""

    def __init__(self, ids: Sequence[str], seed: int, **options: Any):
        self.given, self.ids, self.seed, self.options = list(ids), sorted(ids), seed, options
        self.seen: dict[str, tuple[int, float, int, int]] = {}
        self.flying: dict[str, int] = {}
        self.plans = self.planned = 0

    def news(self, ledger: Ledger) -> list[tuple[str, int, float, int, int]]:
        """(id, rewards, their sum, passes, step) of every row that changed, by id."""
        out = []
        for name in self.ids:
            row = ledger.row(name)
            if row.last_seen is None:
                continue
            count, total, passes, step = self.seen.get(name, (0, 0.0, 0, -1))
            if (row.count, row.last_seen) == (count, step):
                continue
            now = row.count * (row.mean or 0.0)
            self.seen[name] = (row.count, now, row.passes, row.last_seen)
            out.append((name, row.count - count, now - total, row.passes - passes, row.last_seen))
        return out

    @property
    def clock(self) -> int:
        return max((step for *_, step in self.seen.values()), default=-1)

    def right(self, count: int, total: float, passes: int) -> float:
        return float(passes) if self.options.get("signal", "passes") == "passes" else min(max(total, 0.0), float(count))

    def busy(self, ledger: Ledger) -> set[str]:
        def seen(name: str) -> int:
            step = ledger.row(name).last_seen
            return -1 if step is None else step

        self.flying = {name: step for name, step in self.flying.items() if step == seen(name)}
        return set(self.flying)

    def depart(self, names: Sequence[str], ledger: Ledger) -> None:
        for name in names:
            step = ledger.row(name).last_seen
            self.flying[name] = -1 if step is None else step


class PlainVade(Plain):
    def __init__(self, ids: Sequence[str], seed: int, **options: Any):
        super().__init__(ids, seed, **options)
        self.counts: dict[str, tuple[float, float, int]] = {}
        self.visits: dict[str, int] = {}

    def plan(self, ledger: Ledger, prompts: int) -> list[str]:
        lam1, lam2, cap = self.options.get("lam1", 0.2), self.options.get("lam2", 0.999), self.options.get("max_visits")
        for name, count, total, passes, step in self.news(ledger):
            if count:
                a, b, before = self.counts.get(name, (0.0, 0.0, step))
                idle, gain = max(0, step - 1 - before), self.right(count, total, passes)
                self.counts[name] = (lam1 * a * lam2**idle + gain, lam1 * b * lam2**idle + (count - gain), step)
        a_N, b_N, clock = [], [], self.clock
        for name in self.ids:
            a, b, step = self.counts.get(name, (0.0, 0.0, clock))
            a_N.append(a * lam2 ** (clock - step) + 1)
            b_N.append(b * lam2 ** (clock - step) + 1)
        p = rng.generator(self.seed, "vade", self.plans).beta(a_N, b_N)
        ranked = [self.ids[i] for i in np.argsort(-(p * (1 - p) ** 2), kind="stable")]
        capped = {name for name, n in self.visits.items() if cap is not None and n >= cap}
        out = ranked_last(ranked, [capped, self.busy(ledger)], prompts)
        for name in out:
            self.planned += 1
            self.visits[name] = self.visits.get(name, 0) + 1
            if self.planned % len(self.ids) == 0:
                self.visits = {}
        self.depart(out, ledger)
        self.plans += 1
        return out


class PlainPrioritized(Plain):
    def __init__(self, ids: Sequence[str], seed: int, **options: Any):
        super().__init__(ids, seed, **options)
        self.tracker: dict[str, tuple[float, float, int]] = {}

    def plan(self, ledger: Ledger, prompts: int) -> list[str]:
        g, eps, half = self.options.get("g", 0.0), self.options.get("eps", 0.05), self.options.get("half_life", 50.0)
        for name, count, total, passes, step in self.news(ledger):
            if count:
                a, b, before = self.tracker.get(name, (0.5, 0.5, step))
                gain, rho = self.right(count, total, passes), min(max(2.0 ** (-(step - before) / half), 0.875), 0.96)
                self.tracker[name] = (rho * a + gain, rho * b + count - gain, step)
        weights = []
        for name in self.ids:
            a, b, _ = self.tracker.get(name, (0.5, 0.5, 0))
            v = a / (a + b)
            weights.append(math.sqrt(v * (1 - v)) / (a + b) ** g + eps)
        uniforms = rng.generator(self.seed, "prioritized", self.plans).random(len(self.ids))
        ranked = [self.ids[i] for i in np.argsort(-np.log1p(-uniforms) / np.array(weights), kind="stable")]
        out = ranked_last(ranked, [self.busy(ledger)], prompts)
        self.depart(out, ledger)
        self.plans += 1
        return out


class PlainVas(Plain):
    def __init__(self, ids: Sequence[str], seed: int, **options: Any):
        super().__init__(ids, seed, **options)
        self.rates: dict[str, tuple[float, int]] = {}
        self.weights: list[float] = []
        self.due = 0
        self.rest = uniform(self.given, seed)

    def plan(self, ledger: Ledger, prompts: int) -> list[str]:
        share, alpha, beta = self.options.get("share", 0.5), self.options.get("alpha", 0.8), self.options.get("beta", 0.2)
        half, momentum = self.options.get("half_life", 100.0), self.options.get("momentum", 0.0)
        for name, count, _, passes, step in self.news(ledger):
            if count:
                self.rates[name] = (passes / count, step)
        clock = self.clock
        if clock >= self.due:
            pairs = [self.rates.get(name, (0.5, clock)) for name in self.ids]
            rates = np.array([0.5 + (rate - 0.5) * 2.0 ** ((step - clock) / half) for rate, step in pairs])
            measured = [ledger.row(name).diversity for name in self.ids]
            known = [d for d in measured if d is not None]
            neutral = math.fsum(known) / len(known) if known else 0.0
            scores = alpha * 4 * rates * (1 - rates) + beta * np.array([neutral if d is None else d for d in measured])
            low, high = float(scores.min()), float(scores.max())
            fresh = ((scores - low) / (high - low) if high - low > 1e-12 else np.ones_like(scores)).tolist()
            m = momentum if self.weights else 0.0
            old = self.weights or [1.0] * len(self.ids)
            self.weights = [m * a + (1 - m) * b for a, b in zip(old, fresh, strict=True)]
            self.due = clock + self.options.get("refresh", 4)
        weighted = math.floor(share * prompts + 1e-9)
        weights = np.array(self.weights or [1.0] * len(self.ids))
        edges = np.cumsum(weights if weights.sum() > 0 else np.ones_like(weights))
        numbers = rng.generator(self.seed, "vas", self.plans).random(weighted) * edges[-1]
        last = np.flatnonzero(np.diff(edges, prepend=0.0))[-1]
        chosen = [self.ids[i] for i in np.minimum(np.searchsorted(edges, numbers, side="right"), last)]
        rest = self.rest.plan(ledger, prompts=prompts - weighted, rollouts=1) if prompts > weighted else []
        names = [planned.sample_id for planned in rest]
        out = [(chosen if (i + 1) * weighted // prompts > i * weighted // prompts else names).pop(0) for i in range(prompts)]
        self.plans += 1
        return out
