"""SCOPE: votes weigh as much as the thought behind them was sure, and parts of the group have labels of their own. After arXiv:2512.15146,
with the authors' code.

No gold answer is known. A rollout's confidence is the mean over the paragraphs of its response of the mean confidence of their tokens; a
label is the answer with the most confidence among its voters. The group is cut into parts of m rollouts, each with a label of its own
from half of the group (all of it where m is the group), and m of 1, 2, 4, ... is the one that minimises

    sqrt(balance (1 - q)^2 + (1 - balance) (1 - e)^2)

q the mean share of the group's answers that agree with a part's label and e the share of different labels, each scaled over the m to
[0, 1] (1 where it is the same for all). A rollout earns 1 where its answer is its part's label. As in the code: balance 0.7, the halves.

Ours: a token's confidence is exp(-H), H the entropy of its distribution, where the paper takes the mean log-prob of the likeliest
candidates; the half that votes on a part is those from the part on, in order, where the paper draws it; ties go to the larger m; rollouts
that the policy did not sample under the group's question have no vote. Takes the place of a column such as `majority_vote`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping

NAME = "reward_shaping 'scope_proposed'"
NOBODY = -1


def confidence(entropy_NT: Tensor, paragraph_NT: Tensor, length_N: Tensor) -> Tensor:
    """Mean over paragraphs of the mean of exp(-entropy) of their tokens, float64 [N]; 0 for a response without tokens."""
    out_N = torch.zeros(len(length_N), dtype=torch.float64)
    for n in range(len(length_N)):
        length = int(length_N[n])
        if length:
            sure, number = (-entropy_NT[n, :length].double()).exp(), paragraph_NT[n, :length]
            count = torch.zeros(int(number.max()) + 1, dtype=torch.float64).index_add(0, number, torch.ones_like(sure))
            total = torch.zeros_like(count).index_add(0, number, sure)
            out_N[n] = (total[count > 0] / count[count > 0]).mean()
    return out_N


def weighted_vote(answers: Sequence[int], weights: Sequence[float]) -> int:
    """The answer with the most weight, the first of equals; -1 if nobody answered."""
    weight: dict[int, float] = {}
    for answer, w in zip(answers, weights, strict=True):
        if answer >= 0:
            weight[answer] = weight.get(answer, 0.0) + w
    return max(weight, key=lambda answer: weight[answer], default=NOBODY)


def labels(answers: Sequence[int], weights: Sequence[float], size: int) -> list[int]:
    """Label of each part of `size` rollouts (the last may be smaller)."""
    count = len(answers)
    voters = count if size >= count else max(1, count // 2)
    places = [[(start + i) % count for i in range(voters)] for start in range(0, count, size)]
    return [weighted_vote([answers[i] for i in own], [weights[i] for i in own]) for own in places]


def _scaled(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 1.0 for value in values]


def part_size(answers: Sequence[int], weights: Sequence[float], balance: float) -> int:
    """m: see the module docstring."""
    sizes = [*(2**i for i in range(math.ceil(math.log2(len(answers))))), len(answers)] if len(answers) > 1 else [1]
    found = [labels(answers, weights, size) for size in sizes]
    agreement = _scaled([sum(answers.count(label) for label in own if label >= 0) / (len(own) * len(answers)) for own in found])
    variety = _scaled([len(set(own)) / len(own) for own in found])
    gaps = [balance * (1 - q) ** 2 + (1 - balance) * (1 - e) ** 2 for q, e in zip(agreement, variety, strict=True)]
    return min(zip(gaps, sizes, strict=True), key=lambda one: (round(one[0], 12), -one[1]))[1]


@reward_shaping("scope_proposed", paper="arXiv:2512.15146", needs=("entropy_NT", "paragraph_NT", "answer_N"))
def scope_proposed(rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, balance: float = 0.7) -> Tensor:
    """1 for answers that equal the label of their part of the group, by votes that weigh as much as their thoughts were sure, else 0.

    A group without a readable answer keeps its rewards.

    Raises:
        ValueError: balance outside [0, 1], or there is no such column.
    """
    if not 0 <= balance <= 1:
        raise ValueError(f"{NAME}: balance is {balance}; it must be in [0, 1]")
    k = column_index(x, reward)
    answer_N = need(x, "answer_N", NAME)
    sure_N = confidence(need(x, "entropy_NT", NAME), need(x, "paragraph_NT", NAME), x.length_N)
    column_N = rewards_NK[:, k].clone()
    for group in sorted({int(one) for one in x.group_N}):
        places = [int(place) for place in ((x.group_N == group) & valid_N).nonzero()[:, 0]]
        votes = [n for n in places if x.on_policy_N[n]]
        answers, weights = [int(answer_N[n]) for n in votes], [float(sure_N[n]) for n in votes]
        if not any(answer >= 0 for answer in answers):
            continue
        size = part_size(answers, weights, balance)
        found = labels(answers, weights, size)
        whole = weighted_vote(answers, weights)
        for n in places:
            label = found[votes.index(n) // size] if n in votes else whole
            column_N[n] = float(int(answer_N[n]) == label >= 0)
    return with_column(rewards_NK, k, column_N)
