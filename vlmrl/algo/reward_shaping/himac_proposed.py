"""HiMAC's reward of a plan: the mean reward of the answers that follow it. After arXiv:2603.00977.

For strategy `himac_proposed`; answers keep their rewards. A plan that cannot be read, so that nothing follows it, earns 0. Ours: the mean,
as the paper's estimate of a plan's value could not be read.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping
from vlmrl.algo.rules import needs_strategy
from vlmrl.algo.texts import answers_of_texts

NAME = "reward_shaping 'himac_proposed'"


@reward_shaping("himac_proposed", paper="arXiv:2603.00977", needs=("question_N",), refuses=needs_strategy(NAME, "himac_proposed"))
def himac_proposed(rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str) -> Tensor:
    """A plan earns the mean of what the answers that follow it earn.

    Raises:
        ValueError: there is no such column.
    """
    k = column_index(x, reward)
    column_N = rewards_NK[:, k].clone()
    for text, answers in answers_of_texts(x.group_N, need(x, "question_N", NAME)):
        judged = [float(rewards_NK[n, k]) for n in answers if valid_N[n] and not rewards_NK[n, k].isnan()]
        column_N[text] = sum(judged) / len(judged) if judged else 0.0
    return with_column(rewards_NK, k, column_N)
