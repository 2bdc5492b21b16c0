"""RiskPO: mixed value-at-risk of bundles of questions in place of the mean reward. arXiv:2510.00911, with the authors' code.

The j-th answers of `bundle` questions form paper j with the score R_j, their summed reward. With the quantiles q_d < q_u of the bundle's
scores at `low` and `high`, and x+ = max(x, 0):

    rvar = ((R - q_d)+ - (R - q_u)+ + kappa (q_d - q_u)) / (high - low),  cvar = -(q_d - R)+ / low
    A = (omega cvar + rvar) / (omega + 1), over the deviation of the bundle's scores

so scores above q_u are not told apart, and failures weigh omega more. kappa 1 (`natural`) makes every advantage at most 0. Each answer of
a paper gets its A: as it is (`uniform`), times 0.5 where it is right and 1.5 where it is wrong (`score`), or over the deviation of its
question (`std`).

Ours: quantiles are those of the bundle (the authors mix them with tracked ones by half); answers are paired in order, which is as good
as a random pairing, as the answers of a question are exchangeable; questions are bundled in the order of their ids, the last bundle may
be smaller, and answers beyond the shortest question of a bundle get 0. Bundles whose scores are all equal get exactly 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage

RIGHT = 0.5
LEAST_STD = 1e-3


def mixed_risk(score_n: Tensor, *, low: float, high: float, omega: float, natural: bool) -> Tensor:
    """A of each paper from the scores of a bundle, before the division by their deviation. float64 [n]"""
    below, above = score_n.quantile(low), score_n.quantile(high)
    rvar_n = ((score_n - below).clamp(min=0) - (score_n - above).clamp(min=0) + natural * (below - above)) / (high - low)
    cvar_n = -(below - score_n).clamp(min=0) / low
    return (omega * cvar_n + rvar_n) / (omega + 1)


@advantage("riskpo", paper="arXiv:2510.00911", scale="deviation", scale_over="bundle", moves_signs=True)
def riskpo(
    x: AdvantageInputs,
    *,
    bundle: int = 1,
    low: float = 0.2,
    high: float = 0.8,
    omega: float = 0.5,
    natural: bool = False,
    share: Literal["uniform", "score", "std"] = "uniform",
    epsilon: float = 1e-6,
) -> Tensor:
    """Mixed value-at-risk within bundles of `bundle` questions.

    Raises:
        ValueError: an argument is out of range.
    """
    if bundle < 1 or not 0 < low < high < 1 or omega < 0:
        raise ValueError(f"advantage 'riskpo': needs bundle {bundle} >= 1, 0 < low {low} < high {high} < 1 and omega {omega} >= 0")
    out_N = torch.zeros(x.valid_N.shape, dtype=torch.float64)
    ids = sorted({int(i) for i in x.group_N[x.valid_N]})
    for first in range(0, len(ids), bundle):
        places = [(x.valid_N & (x.group_N == one)).nonzero()[:, 0] for one in ids[first : first + bundle]]
        papers = min(len(place) for place in places)
        place_QJ = torch.stack([place[:papers] for place in places])
        reward_QJ = x.reward_N[place_QJ].double()
        score_J = reward_QJ.sum(dim=0)
        paper, everyone = torch.zeros(papers, dtype=torch.int64), torch.ones(papers, dtype=torch.bool)
        if bool(segments.flat(score_J, paper, everyone)[0]):
            continue
        adv_J = mixed_risk(score_J, low=low, high=high, omega=omega, natural=natural) / (score_J.std() + epsilon)
        adv_QJ = adv_J.expand(reward_QJ.shape)
        if share == "score":
            adv_QJ = torch.where(reward_QJ > RIGHT, 0.5, 1.5) * adv_QJ
        elif share == "std":
            std_Q = reward_QJ.std(dim=1, keepdim=True)
            adv_QJ = adv_QJ / torch.where(std_Q > LEAST_STD, std_Q, torch.ones_like(std_Q))
        out_N[place_QJ] = adv_QJ
    return out_N.detach()
