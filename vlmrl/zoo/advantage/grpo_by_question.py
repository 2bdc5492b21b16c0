"""GRPO among the rows of a group that answer the same question.

Some strategies ask a group more than one question: paraphrases, a forecast of the own answers, an attempt with feedback on it. Rewards
of different questions are not compared: A_i = (r_i - mean) / (std + epsilon) over the rows with the same question, as PS-GRPO
(arXiv:2510.04392) and MASA (arXiv:2510.03259) do. A group with one question is `grpo`.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.attempts import joint
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


def by_question(x: AdvantageInputs, method: str) -> Tensor:
    """Ids of (group, question), int64 [N]."""
    return joint(x.group_N, need(x, "question_N", method))


@advantage("grpo_by_question", needs=("question_N",), scale="deviation")
def grpo_by_question(x: AdvantageInputs, *, epsilon: float = 1e-4) -> Tensor:
    """Reward minus mean, over deviation, both of the group's rows with the same question. One number per rollout, [N]."""
    return grpo(dataclasses.replace(x, group_N=by_question(x, "advantage 'grpo_by_question'")), epsilon=epsilon)
