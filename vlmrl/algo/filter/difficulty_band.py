"""Keep groups of intermediate difficulty: mean score of the sampled rows within a band. Balanced online difficulty filtering,
arXiv:2504.03380.

The paper keeps prompts whose accuracy under the current policy lies between two thresholds around one half. Ours: the default band
[0.2, 0.8]; the score is the reward or one reward column (a shaped reward has spread everywhere, so filter on accuracy where there is
one), as it is or, with `pass_at`, as a pass or fail. Rows that nobody judged and rows that were not sampled do not count; a group
without any is dropped. Borders belong to the band, unless `strict` says otherwise, as in the released code of OpenVLThinkerV2
(arXiv:2604.08539).
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import rollout_filter

SLACK = 1e-9
"""Means closer than this to a border lie on it."""


@rollout_filter("difficulty_band", paper="arXiv:2504.03380", drops_flat_groups=True, sampled_rows_only=True)
def difficulty_band(
    x: AdvantageInputs,
    *,
    low: float = 0.2,
    high: float = 0.8,
    reward: str | None = None,
    pass_at: float | None = None,
    strict: bool = False,
) -> tuple[Tensor, str]:
    """Keep groups whose mean score lies in [low, high], with `strict` in (low, high).

    Returns:
        (rows to keep [N] bool, reason).
    """
    if low > high:
        raise ValueError(f"filter 'difficulty_band': low {low} is above high {high}")
    score_N, counted_N = metric(x, reward, "difficulty_band")
    if pass_at is not None:
        score_N = (score_N >= pass_at - SLACK).to(score_N.dtype)
    mean_N = segments.mean(score_N, x.group_N, counted_N)
    some_N = segments.count(x.group_N, counted_N) > 0
    # borders belong to the band, or with `strict` do not: the slack widens it or narrows it, so that rounding does not decide
    slack = -SLACK if strict else SLACK
    return some_N & (mean_N >= low - slack) & (mean_N <= high + slack), "difficulty_band"


def metric(x: AdvantageInputs, reward: str | None, method: str) -> tuple[Tensor, Tensor]:
    """Take the reward, or one column of it, of the sampled rows that have one.

    Returns:
        (score [N] float64, counted [N] bool).

    Raises:
        ValueError: there is no such column.
    """
    if reward is None:
        return x.reward_N, x.valid_N & x.on_policy_N
    if reward not in x.columns:
        raise ValueError(f"filter '{method}': no reward column '{reward}' (there are: {', '.join(x.columns)})")
    score_N = x.rewards_NK[:, x.columns.index(reward)]
    return score_N, x.valid_N & x.on_policy_N & ~score_N.isnan()
