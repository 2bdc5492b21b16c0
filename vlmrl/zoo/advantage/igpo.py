"""IGPO: a turn earns how much likelier it made the right answer. arXiv:2510.14967, with the authors' code.

p_t is the policy's likelihood of the right answer, asked for at once, when it has seen what came of its turns 1 to t. A turn's reward is
p_t - p_(t-1); the last one's is the outcome of the attempt. The advantage is the discounted sum of rewards from the turn on, gamma 1, less
the mean of the group's turns with the same number; no deviation. A turn that no other attempt reached gets 0.

Rows are turns of attempts, whose prompts hold what was seen before; p before a turn is that of its prompt (`belief_N`), so that of the turn
before needs no further pass. The right answer is the same for the whole attempt: `meta.final_answer` of its rows. The outcome is the sum
of the rewards of the attempt's rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.attempts import Attempts, before, check_gamma, joint, regrouped, returns
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage

NAME = "advantage 'igpo'"


@advantage("igpo", paper="arXiv:2510.14967", needs=("trajectory_N", "turn_N", "belief_N"), moves_signs=True)
def igpo(x: AdvantageInputs, *, gamma: float = 1.0) -> Tensor:
    """Gain of likelihood of the right answer from the turn on, plus the outcome, against the group's turns of the same number. [N]

    Raises:
        ValueError: gamma outside [0, 1]; no attempts, turns or beliefs; a row without a right answer.
    """
    check_gamma(gamma, NAME)
    attempts, turn_N = Attempts.of(x, NAME), need(x, "turn_N", NAME)
    belief_N = need(x, "belief_N", NAME).double()
    if bool((belief_N.isnan() & attempts.whole_N).any()):
        raise ValueError(f"{NAME}: a row has no right answer; give the rows of an attempt its 'meta.final_answer', a text")
    before_N = before(attempts.trajectory_N, turn_N, NAME)
    outcome_N = attempts.totals(torch.where(attempts.whole_N, x.reward_N, torch.zeros_like(x.reward_N)))
    reward_N = outcome_N.clone()  # of last turns; all others are replaced by what was gained
    for n, earlier in enumerate(before_N):
        if earlier >= 0:
            reward_N[earlier] = belief_N[n] - belief_N[earlier]
    return regrouped(returns(reward_N, before_N, gamma), joint(x.group_N, turn_N), attempts.whole_N).detach()
