"""AdamW over named parameters."""

from __future__ import annotations

from typing import Any

import torch

from vlmrl.config.section import OptimSection
from vlmrl.train.shard.base import Named


def groups_of(named: Named, cfg: OptimSection) -> list[dict[str, Any]]:
    """Parameter groups in which only matrices decay, as is usual for transformers. `names` of a group go with its `params`."""
    matrices, rest = [(n, p) for n, p in named if p.ndim >= 2], [(n, p) for n, p in named if p.ndim < 2]
    parts = [(matrices, cfg.weight_decay), (rest, 0.0)]
    return [{"params": [p for _, p in part], "weight_decay": decay, "names": [n for n, _ in part]} for part, decay in parts if part]


def make_optimizer(named: Named, cfg: OptimSection) -> tuple[torch.optim.AdamW, list[str]]:
    """The optimizer, and the parameter names in its order."""
    groups = groups_of(named, cfg)
    order = [name for group in groups for name in group.pop("names")]
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas), order
