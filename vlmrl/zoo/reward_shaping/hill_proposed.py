"""HiLL's reward of a hint: it should leave the outcome open, and be needed as little as possible. After arXiv:2604.00698, with the
authors' code.

    r = u(p, n) exp(min(D, 0) / T),  u(p, n) = 1 - p^n - (1 - p)^n

p is the share of right answers under the hint, of n; D, the reliance, is the mean over these right answers of (mean log-prob of a token
without the hint less that with it): far below 0 where the answer only comes to mind because of the hint. Where all or none are right r is
0, and a hint that could not be used (it gives the answer away, or cannot be read) earns `leak`. As in the code: T 0.3, and -0.2.

For strategy `hill_proposed`; answers and groups without hints keep their rewards. Ours: one policy hints and answers, so D is under that
policy; one forward pass of these rows under both prompts.
"""

from __future__ import annotations

import math

from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping
from vlmrl.algo.rules import needs_strategy
from vlmrl.zoo.texts import answers_of_texts

NAME = "reward_shaping 'hill_proposed'"


def hint_reward(right: int, answers: int, reliance: float, temperature: float) -> float:
    """u(p, n) exp(min(D, 0) / T); 0 where all or none are right."""
    if not 0 < right < answers:
        return 0.0
    p = right / answers
    return (1 - p**answers - (1 - p) ** answers) * math.exp(min(reliance, 0.0) / temperature)


@reward_shaping(
    "hill_proposed", paper="arXiv:2604.00698", needs=("question_N", "reliance_N"), refuses=needs_strategy(NAME, "hill_proposed")
)
def hill_proposed(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    success_at: float = 0.5,
    temperature: float = 0.3,
    leak: float = -0.2,
) -> Tensor:
    """A hint's reward goes by how open it leaves the outcome, and by how likely the right answers are without it.

    Raises:
        ValueError: a temperature that is not positive, or there is no such column.
    """
    if temperature <= 0:
        raise ValueError(f"{NAME}: temperature is {temperature}; it must be positive")
    k = column_index(x, reward)
    reliance_N = need(x, "reliance_N", NAME)
    column_N = rewards_NK[:, k].clone()
    for text, answers in answers_of_texts(x.group_N, need(x, "question_N", NAME)):
        judged = [n for n in answers if valid_N[n] and not rewards_NK[n, k].isnan()]
        right = [n for n in judged if rewards_NK[n, k] >= success_at]
        known = [float(reliance_N[n]) for n in right if not reliance_N[n].isnan()]
        reliance = sum(known) / len(known) if known else 0.0
        column_N[text] = hint_reward(len(right), len(judged), reliance, temperature) if answers else leak
    return with_column(rewards_NK, k, column_N)
