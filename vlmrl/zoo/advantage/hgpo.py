"""HGPO: turns compared at several depths of common history, a weighted mean of the comparisons. arXiv:2602.22817.

Level k (1, 2, ..., context + 1) compares the turns of the group whose last k states are the same: (Q - mean) / (std + epsilon) with the
population's deviation. Level 0, with `base`, is the attempt's own z-score of returns. Levels at which a turn has company are averaged
with the weights (k + 1)^alpha: the longer the common history, the more it says. With `context: 0` and no base it is one-level regrouping.

Ours: an attempt with a turn that nothing judged gets 0 and enters no statistic. A turn without a state (-1) has no level above 0, nor has
one whose history holds such a turn. Formula from notes of the authors' code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.attempts import Attempts, before, check_gamma, joint, regrouped, returns
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


@advantage("hgpo", paper="arXiv:2602.22817", needs=("trajectory_N", "turn_N", "state_N"), scale="deviation")
def hgpo(
    x: AdvantageInputs, *, context: int = 4, gamma: float = 0.95, alpha: float = 1.0, base: bool = True, epsilon: float = 1e-6
) -> Tensor:
    """Weighted mean of the turn's z-scores among turns with the same last 1, 2, ..., context + 1 states, and of the attempt's.

    Raises:
        ValueError: context below 0, gamma outside [0, 1], a need that is missing, two rows of one turn, or an attempt in several groups.
    """
    check_gamma(gamma, "advantage 'hgpo'")
    if context < 0:
        raise ValueError(f"advantage 'hgpo': context is {context}; it must be at least 0")
    attempts = Attempts.of(x, "advantage 'hgpo'")
    state_N, turn_N = need(x, "state_N", "advantage 'hgpo'"), need(x, "turn_N", "advantage 'hgpo'")
    before_N = before(attempts.trajectory_N, turn_N, "advantage 'hgpo'")
    q_N = returns(x.reward_N, before_N, gamma)
    total_N, weight_N = torch.zeros_like(q_N), torch.zeros_like(q_N)
    if base:
        z_N = regrouped(attempts.totals(x.reward_N), x.group_N, attempts.first_N, ddof=0, epsilon=epsilon)
        total_N, weight_N = total_N + attempts.spread(z_N), weight_N + attempts.whole_N.double()
    last_N = torch.tensor(before_N, dtype=torch.int64)
    key_N, known_N = joint(x.group_N, state_N), attempts.whole_N & (state_N >= 0)
    for k in range(1, context + 2):
        if k > 1:  # the last k states are the last k - 1 of the turn before, and this one
            known_N = known_N & (last_N >= 0) & known_N[last_N.clamp(min=0)]
            key_N = joint(key_N[last_N.clamp(min=0)], state_N)
        company_N = known_N & (segments.count(key_N, known_N) > 1)
        weight = (k + 1.0) ** alpha
        total_N = total_N + weight * regrouped(q_N, key_N, company_N, ddof=0, epsilon=epsilon)
        weight_N = weight_N + weight * company_N
    out_N = total_N / torch.where(weight_N > 0, weight_N, torch.ones_like(weight_N))
    return torch.where(attempts.whole_N, out_N, torch.zeros_like(out_N)).detach()
