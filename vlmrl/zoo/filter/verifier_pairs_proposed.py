"""VerIPO's verifier: right answers that are flawed stand against right answers that are not. After its README, arXiv:2505.19000.

Between phases of GRPO the paper looks through rollouts for preference pairs and trains on them with DPO. An answer is good if it is right,
its reasoning agrees with it, does not repeat itself, and is not too short or cut off. The families `penalty` and `consistency` pair a good
answer with one to the same question that is right but fails one of the other checks. That is this filter, next to
`group_loss: {name: dpo}` and the reward_shaping of the same name, in a stage of its own between two of GRPO:

    filter           keeps right answers of questions that have a good and a flawed one; wrong ones are in no pair
    reward_shaping   1 for a good answer, 0 for a flawed one, in the column of accuracy

`checks` names reward columns, each passed at `pass_at` and more: `{consistency: 1.0, repetition: -0.2}`. A column that did not judge is not
passed. Too short is below `shortest` times the median length of the question's right answers.

Ours: thresholds (the paper's are not known), and that answers which pass all checks are good however often they were sampled. Not there:
the family `reflection`, whose pairs are put together from two answers, at most two pairs a question, and leaving out four fifths of the
questions that are solved before the next phase (filter `zero_variance` leaves out all of them).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage.centre import median
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping, rollout_filter

RIGHT = 0.5
NAME = "verifier_pairs_proposed"


def grades(
    x: AdvantageInputs, rewards_NK: Tensor, reward: str, checks: Mapping[str, float], shortest: float, slot: str
) -> tuple[Tensor, Tensor]:
    """(right answers, good ones among them), bool [N].

    Raises:
        ValueError: a column that is not there, or `shortest` outside [0, 1].
    """
    if not 0 <= shortest <= 1:
        raise ValueError(f"{slot} '{NAME}': shortest is {shortest}; it must be within 0 and 1, a share of the median length")
    accuracy_N = rewards_NK[:, column_index(x, reward, f"{slot} '{NAME}'")]
    right_N = x.valid_N & (accuracy_N >= RIGHT)  # what was not judged (NaN) is not right
    length_N = x.length_N.double()
    good_N = right_N & (length_N >= shortest * median(length_N, x.group_N, right_N))
    if "truncated_N" in x.provided:
        good_N &= ~x.provided["truncated_N"]
    for column, pass_at in checks.items():
        good_N &= rewards_NK[:, column_index(x, column, f"{slot} '{NAME}'")] >= pass_at
    return right_N, good_N


@rollout_filter(NAME, paper="arXiv:2505.19000", needs=("truncated_N",), unit="rollout")
def keep_pairs(
    x: AdvantageInputs, *, reward: str = "", checks: dict[str, float] | None = None, shortest: float = 0.5
) -> tuple[Tensor, str]:
    """Keep right answers of groups with a good and a flawed one, by the raw columns; `reward` is accuracy's, by default the first.

    Raises:
        ValueError: see `grades`.
    """
    right_N, good_N = grades(x, x.rewards_NK, reward or x.columns[0], checks or {}, shortest, "filter")
    both_N = (segments.count(x.group_N, good_N) > 0) & (segments.count(x.group_N, right_N & ~good_N) > 0)
    return right_N & both_N, NAME


@reward_shaping(NAME, paper="arXiv:2505.19000", needs=("truncated_N",))
def grade(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    checks: dict[str, float] | None = None,
    shortest: float = 0.5,
) -> Tensor:
    """1 for right answers that pass all checks, 0 for all others, in the column of accuracy.

    Raises:
        ValueError: see `grades`.
    """
    _, good_N = grades(x, rewards_NK, reward, checks or {}, shortest, "reward_shaping")
    return with_column(rewards_NK, column_index(x, reward), torch.where(good_N & valid_N, 1.0, 0.0))
