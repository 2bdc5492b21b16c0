"""AdvEvo-MARL's public baseline: agents of the same function share one. After arXiv:2510.01586.

    A_i = r_i - mean of r over the rows of the group with the same role

Roles are the group's own question, the texts that the policy writes (question 1), and the answers to any of these: a defender is compared
with the defenders against all attacks, where `grpo_by_question` compares it with those against the same. No division by a deviation. A
group without texts is `dr_grpo`. For strategy `advevo_proposed`; ours: one policy has both roles.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from vlmrl.algo.advantage.centre import centre_scale
from vlmrl.algo.attempts import joint
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


@advantage("advevo_proposed", paper="arXiv:2510.01586", needs=("question_N",))
def advevo_proposed(x: AdvantageInputs) -> Tensor:
    """Reward minus the mean of the group's rows with the same role. One number per rollout, [N].

    Raises:
        ValueError: it is not known which question each row was asked.
    """
    role_N = need(x, "question_N", "advantage 'advevo_proposed'").clamp(max=2)
    return centre_scale(dataclasses.replace(x, group_N=joint(x.group_N, role_N)))
