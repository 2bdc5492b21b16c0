"""AdvEvo-MARL's reward of an attack: how often it succeeds. After arXiv:2510.01586.

For strategy `advevo_proposed`: a misleading remark earns `best` less the mean reward of the answers that were given with it in sight, so
what defenders gain attackers lose; answers keep their rewards. A remark that could not be used (it gives the answer away, or cannot be
read) earns 0. Ours: that form, as the paper's verdicts on jailbreaks are for another task.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping
from vlmrl.algo.rules import needs_strategy
from vlmrl.algo.texts import answers_of_texts

NAME = "reward_shaping 'advevo_proposed'"


@reward_shaping("advevo_proposed", paper="arXiv:2510.01586", needs=("question_N",), refuses=needs_strategy(NAME, "advevo_proposed"))
def advevo_proposed(rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, best: float = 1.0) -> Tensor:
    """An attack earns what the answers to it lose: `best` less their mean reward.

    Raises:
        ValueError: there is no such column.
    """
    k = column_index(x, reward)
    column_N = rewards_NK[:, k].clone()
    for text, answers in answers_of_texts(x.group_N, need(x, "question_N", NAME)):
        judged = [float(rewards_NK[n, k]) for n in answers if valid_N[n] and not rewards_NK[n, k].isnan()]
        column_N[text] = best - sum(judged) / len(judged) if judged else 0.0
    return with_column(rewards_NK, k, column_N)
