"""Trust-GRPO of SophiaVL-R1: a judged thinking reward, trusted less where it prefers wrong answers, fading out. arXiv:2505.17018.

r: outcome, q: thinking score, both in [0, 1]. In a group let mu_c and mu_w be the mean q of the rollouts with r >= 0.5 and of the
rest. gamma = 1 if mu_c >= mu_w, else exp(mu_c - mu_w); R = r + gamma * alpha * exp(-s / T) * q, alpha = 0.3, T the number of steps.
The shape turns the column of q into the second term (give it weight 1); s / T is the share of the stage that is done.

As in the released code: a group whose outcomes are all >= 0.9 or all <= 0.1 loses the term, and without right answers gamma is 1.
Ours: where a thought was not judged, the whole group loses the term (the code scores it 0); a rollout without an outcome gets no term
and enters no mean. The code also judges only rollouts with r >= 0.2 and scores the rest 0 (`wrong: zero`): with 0/1
outcomes mu_w is then 0, gamma always 1, and the trust does nothing. The default wants every thought judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping

RIGHT = 0.5
JUDGED_FROM = 0.2
UNANIMOUS = (0.1, 0.9)


def trust_weight(score_N: Tensor, outcome_N: Tensor, group_N: Tensor, valid_N: Tensor) -> Tensor:
    """gamma of each rollout's group, float64 [N] in (0, 1]."""
    right_N, wrong_N = valid_N & (outcome_N >= RIGHT), valid_N & (outcome_N < RIGHT)
    gap_N = segments.mean(score_N, group_N, right_N) - segments.mean(score_N, group_N, wrong_N)
    gap_N = torch.where(segments.count(group_N, right_N) > 0, gap_N, torch.zeros_like(gap_N))
    return gap_N.clamp(max=0).exp()


def _trusts_itself(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if arguments.get("reward") is not None and arguments.get("reward") == arguments.get("outcome"):
        yield f"reward_shaping 'trust' weighs '{arguments['reward']}' by how well it agrees with itself; outcome must be another reward"


@reward_shaping("trust", paper="arXiv:2505.17018", needs=("progress",), refuses=_trusts_itself)
def trust(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    outcome: str,
    alpha: float = 0.3,
    decay: float = 1.0,
    wrong: Literal["judged", "zero"] = "judged",
) -> Tensor:
    """Weigh the thinking column by trust and by progress. `outcome`: the column that says what is right; `decay`: over a whole stage
    the term falls by exp(-decay)."""
    if alpha < 0 or decay < 0:
        raise ValueError(f"reward_shaping 'trust': alpha {alpha} and decay {decay} must not be negative")
    k = column_index(x, reward)
    score_N, outcome_N = rewards_NK[:, k], rewards_NK[:, column_index(x, outcome)]
    known_N = valid_N & ~outcome_N.isnan()
    if wrong == "zero":
        score_N = torch.where(known_N & (outcome_N < JUDGED_FROM), torch.zeros_like(score_N), score_N)
    complete_N = segments.count(x.group_N, known_N & score_N.isnan()) == 0
    low_N, high_N = segments.minimum(outcome_N, x.group_N, known_N), segments.maximum(outcome_N, x.group_N, known_N)
    unanimous_N = (high_N <= UNANIMOUS[0]) | (low_N >= UNANIMOUS[1])

    progress = float(need(x, "progress", "reward_shaping 'trust'"))
    factor_N = trust_weight(score_N, outcome_N, x.group_N, known_N & complete_N) * alpha * math.exp(-decay * progress)
    acted_N = known_N & complete_N & ~unanimous_N
    return with_column(rewards_NK, k, torch.where(acted_N, factor_N * score_N, torch.zeros_like(score_N)))
