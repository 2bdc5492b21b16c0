"""SGRPO: sets of rollouts of one prompt are compared by their diversity, rollouts by their reward. After arXiv:2605.08659, with the
authors' code.

A prompt's rollouts are M sets of G. A = (1 - w) A_roll + w A_set: A_roll is the reward less the mean of all other rollouts of the
prompt; A_set the diversity of the rollout's set less the mean of the other sets', w 0.5. What a member adds to the diversity of its set,
c_i = d(S) - d(S without i), says how much of A_set it gets: z-scored within the set, it gets A_set * G softmax(z / T) where A_set is
above 0 and A_set * G softmax(-z / T) below, so that the mean over the set stays A_set.

Ours: the diversity, which the authors measure between molecules, is the share of different parsed answers in the set, what could not be
parsed being one of its own; sets are made of the group's rollouts by their place. Where the group cannot be parted into `sets` equal sets
of two or more, A_set is 0. T is 1 here. Not there: their thresholds of utility.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.advantage.rloo import rloo
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage

EPSILON = 1e-4


@advantage("sgrpo_proposed", paper="arXiv:2605.08659", needs=("answer_N",), baseline="set", moves_signs=True)
def sgrpo_proposed(x: AdvantageInputs, *, sets: int = 2, weight: float = 0.5, temperature: float = 1.0) -> Tensor:
    """Reward less that of the prompt's others, mixed with the diversity of the rollout's set less that of the other sets.

    Raises:
        ValueError: fewer than 2 sets, a weight outside [0, 1], a temperature not above 0, or no clusters of answers.
    """
    if sets < 2 or not 0 <= weight <= 1 or temperature <= 0:
        given = f"sets {sets} >= 2, weight {weight} in [0, 1] and temperature {temperature} > 0"
        raise ValueError(f"advantage 'sgrpo_proposed': needs {given}")
    answer_N = need(x, "answer_N", "advantage 'sgrpo_proposed'")
    of_set_N = torch.zeros(x.valid_N.shape, dtype=torch.float64)
    for one in sorted({int(i) for i in x.group_N}):
        place_n = (x.group_N == one).nonzero()[:, 0]
        size = len(place_n) // sets
        if size < 2 or len(place_n) % sets:
            continue
        parts = place_n.reshape(sets, size).unbind()
        diversity = [_diversity(answer_N[part_n]) for part_n in parts]
        for part_n, own in zip(parts, diversity, strict=True):
            above = own - (sum(diversity) - own) / (sets - 1)
            of_set_N[part_n] = above * shares(contributions(answer_N[part_n]), temperature if above > 0 else -temperature)
    mixed_N = (1 - weight) * rloo(x).double() + weight * of_set_N
    return torch.where(x.valid_N, mixed_N, torch.zeros_like(mixed_N)).detach()


def shares(added_n: Tensor, temperature: float) -> Tensor:
    """n softmax(z / temperature) of z-scores; their mean is 1."""
    z_n = (added_n - added_n.mean()) / (added_n.std() + EPSILON)
    return len(added_n) * (z_n / temperature).softmax(dim=0)


def contributions(answer_n: Tensor) -> Tensor:
    """How much more diverse the set is with each of its members than without it."""
    n = len(answer_n)
    others = [_diversity(answer_n[torch.arange(n) != i]) for i in range(n)]
    return _diversity(answer_n) - torch.tensor(others, dtype=torch.float64)


def _diversity(answer_n: Tensor) -> float:
    """Share of different answers."""
    return (len({int(one) for one in answer_n if one >= 0}) + int((answer_n < 0).sum())) / len(answer_n)
