"""P-GRPO's gate: the thought earns something only where the outcome is right. arXiv:2508.05170.

r = R_format + R_outcome + R_outcome * R_thinking. The format and outcome columns add up as always; this shape turns the thinking column
into R_outcome * R_thinking, so that a wrong answer has nothing to gain from a thought that a judge likes.

Ours: the formula is from a third party's implementation, the principle from the abstract. For graded outcomes the gate opens at
`tau`, or is the outcome itself (`form: multiply`). A missing outcome closes the gate; a thought that nobody judged stays missing
and adds nothing to the sum. Only the thoughts of right answers need a judge.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping


@reward_shaping("p_grpo_gate", paper="arXiv:2508.05170")
def p_grpo_gate(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    outcome: str,
    tau: float = 1.0,
    form: Literal["threshold", "multiply"] = "threshold",
) -> Tensor:
    """Close the thinking column `reward` where the column `outcome` is below `tau`, or multiply it by that column."""
    k = column_index(x, reward)
    outcome_N = rewards_NK[:, column_index(x, outcome)].nan_to_num(nan=float("-inf"))
    gate_N = (outcome_N >= tau).to(rewards_NK.dtype) if form == "threshold" else outcome_N.clamp(min=0, max=1)
    return with_column(rewards_NK, k, torch.where(gate_N > 0, rewards_NK[:, k] * gate_N, torch.zeros_like(gate_N)))
