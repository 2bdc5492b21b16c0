"""Prompt-GDRO: prompts of the difficulty that goes worst at the moment weigh more. After arXiv:2601.19280, with the authors' code.

Prompts are put into bins by their remembered success (the ledger's value, before this step). S_b is the running mean (rate `rate`) of how
badly bin b goes; the advantages of its rollouts are multiplied by K w_b, with

    w = (1 - floor) softmax(eta S) + floor / K   over the K bins that are there in this step,

eta 0.65, floor 0.01 and rate 0.12 as in the code. A bin does not gain by coming often: S is a mean. The other half of the paper, how many
rollouts a bin gets, is the budget `sqrt_law` in its closed form.

Ours: S is of 1 - the mean reward, for rewards in [0, 1] (the code takes the policy's loss, which an advantage does not know); times K, so
that equal bins weigh 1; prompts that were never seen weigh 1 and are in no bin; without hysteresis at the borders of bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

NAME = "reweight 'prompt_gdro_proposed'"


def bins(x: AdvantageInputs, edges: Sequence[float]) -> Tensor:
    """Bin of each rollout's prompt, int64; -1 where the prompt was never seen or the rollout was not judged."""
    value_N = need(x, "baseline_N", NAME).double()
    seen_N = ~value_N.isnan() & x.valid_N
    index_N = torch.bucketize(torch.where(seen_N, value_N, torch.zeros_like(value_N)), torch.tensor(list(edges), dtype=torch.float64))
    return torch.where(seen_N, index_N, torch.full_like(index_N, -1))


def weights(score: Tensor, eta: float, floor: float) -> Tensor:
    """Weights of the bins that are there, which sum to 1."""
    return (1 - floor) * (eta * score).softmax(dim=0) + floor / len(score)


def update(
    state: Mapping[str, Sequence[float]], x: AdvantageInputs, *, edges: Sequence[float] = (0.4, 0.75), rate: float = 0.12
) -> dict[str, list[float]]:
    """The running means after a step: {bin: [mean of 1 - reward]}. Bins that were not there stay as they are."""
    out = {name: [float(value[0])] for name, value in state.items()}
    bin_N = bins(x, edges)
    for one in sorted({int(i) for i in bin_N if i >= 0}):
        bad = 1 - float(x.reward_N[bin_N == one].detach().double().mean())
        before = out.get(str(one))
        out[str(one)] = [bad if before is None else (1 - rate) * before[0] + rate * bad]
    return out


@reweight("prompt_gdro_proposed", paper="arXiv:2601.19280", needs=("baseline_N",), remembers=update)
def prompt_gdro_proposed(
    x: AdvantageInputs,
    adv_N: Tensor,
    *,
    edges: tuple[float, ...] = (0.4, 0.75),
    eta: float = 0.65,
    floor: float = 0.01,
    rate: float = 0.12,
) -> Tensor:
    """Advantages times the weight of their prompt's bin of difficulty: larger where answers have been worse. [N]

    Raises:
        ValueError: edges that do not rise, an argument out of range, no memory or no remembered values of prompts.
    """
    if list(edges) != sorted(set(edges)) or eta < 0 or not 0 <= floor <= 1 or not 0 < rate <= 1:
        raise ValueError(f"{NAME}: needs rising edges {edges}, eta {eta} >= 0, floor {floor} in [0, 1] and rate {rate} in (0, 1]")
    if x.memory is None:
        raise ValueError(f"{NAME} needs its memory (the means before this step; empty at the first), which is None")
    state = update({name: [float(v) for v in value] for name, value in x.memory.items()}, x, edges=edges, rate=rate)
    bin_N = bins(x, edges)
    there = sorted({int(i) for i in bin_N if i >= 0})
    if not there:
        return adv_N
    weight = weights(torch.tensor([state[str(one)][0] for one in there], dtype=torch.float64), eta, floor)
    out_N = adv_N.clone()
    for one, own in zip(there, weight, strict=True):
        out_N[bin_N == one] *= len(there) * own
    return out_N
