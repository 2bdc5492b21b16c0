"""What a teacher says of sampled tokens, as numbers: the gap of log-probs, as an advantage and in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vlmrl.rollout.mismatch import place_of
from vlmrl.types import Prompt

Sums = dict[str, tuple[float, int]]
"""Metric -> (sum, count)."""


def reverse_kl_advantage(gap_NT: Tensor, *, coefficient: float, clamp: float) -> Tensor:
    """Turn log p_student - log p_teacher of sampled tokens into advantages, whose policy gradient lowers KL(student || teacher).

    The gradient of the divergence of one token's distributions is E_student[(log q - log p) grad log q], so each sampled token has the
    advantage log p - log q. It is clamped, since one token that the teacher finds impossible would outweigh all others of a step.

    Returns:
        [N, T], coefficient times the clamped log p_teacher - log p_student.
    """
    return coefficient * (-gap_NT).clamp(-clamp, clamp)


def gap_sums(gap_NT: Tensor, mask_NT: Tensor, prompts: Sequence[Prompt]) -> Sums:
    """Sum the gap over the tokens in the mask: of all rows, of each kind of media, and of each task.

    Returns:
        (sum, count) of `distill/gap`, `distill/gap/<media>` and `distill/task_gap/<task>`, in nats and tokens.
    """
    out: Sums = {}
    for n, prompt in enumerate(prompts):
        values = gap_NT[n][mask_NT[n]].double()
        for name in ("distill/gap", f"distill/gap/{place_of(prompt)}", f"distill/task_gap/{prompt.sample.task}"):
            before = out.get(name, (0.0, 0))
            out[name] = (before[0] + float(values.sum()), before[1] + len(values))
    return out


def means(ranks: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, float]:
    """Average the sums of all ranks; a metric of no token is left out."""
    names = sorted({name for of_rank in ranks for name in of_rank})
    totals = {name: [of_rank[name] for of_rank in ranks if name in of_rank] for name in names}
    counts = {name: sum(count for _, count in parts) for name, parts in totals.items()}
    return {name: sum(number for number, _ in parts) / counts[name] for name, parts in totals.items() if counts[name]}


def cut(values_NT: Tensor, width: int) -> Tensor:
    """Cut or pad with zeros to so many columns."""
    return torch.nn.functional.pad(values_NT, (0, width - values_NT.shape[1]))
