"""AdamW groups and the learning-rate schedule, a pure function of the step (so it needs no state)."""

from __future__ import annotations

import math
from typing import Literal

import torch

from vlmrl.config.schema import OptimSection


def build(named: list[tuple[str, torch.nn.Parameter]], cfg: OptimSection) -> tuple[torch.optim.AdamW, list[str]]:
    """AdamW in which only matrices decay, as is usual for transformers, and the parameter names in its order."""
    decay = [(n, p) for n, p in named if p.ndim >= 2]
    rest = [(n, p) for n, p in named if p.ndim < 2]
    groups = [(decay, cfg.weight_decay), (rest, 0.0)]
    optimizer = torch.optim.AdamW([{"params": [p for _, p in g], "weight_decay": w} for g, w in groups if g], lr=cfg.lr, betas=cfg.betas)
    return optimizer, [n for n, _ in decay + rest]


def learning_rate(step: int, total: int, *, peak: float, schedule: Literal["constant", "linear", "cosine"], warmup: float) -> float:
    """Rate of the update that follows `step` finished updates: linear warm-up over `warmup * total`, then the schedule to zero."""
    rising = round(warmup * total)
    if step < rising:
        return peak * (step + 1) / rising
    if schedule == "constant":
        return peak
    done = (step - rising) / max(1, total - rising)
    return peak * (1 - done) if schedule == "linear" else peak * 0.5 * (1 + math.cos(math.pi * done))
