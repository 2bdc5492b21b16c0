"""Threads of an update in the machine's memory: the cores of this machine, shared by its ranks.

torchrun gives each rank one thread, for what mostly runs on a GPU. An optimizer of weights that lie in the machine's memory would go
through all of them with it.
"""

from __future__ import annotations

import os
from typing import Any

import torch


def share() -> int:
    """Cores that this process may use, divided by the ranks of this machine; at least 1."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def spread(optimizer: torch.optim.Optimizer, given: int) -> None:
    """Let every update of an AdamW have `given` threads (`run.threads`), or with 0 this rank's share of the cores. It computes each number
    by itself, so no bit depends on them."""
    before: list[int] = []

    def begin(*_: Any) -> None:
        before.append(torch.get_num_threads())
        torch.set_num_threads(given or share())

    def end(*_: Any) -> None:
        torch.set_num_threads(before.pop())

    optimizer.register_step_pre_hook(begin)
    optimizer.register_step_post_hook(end)
