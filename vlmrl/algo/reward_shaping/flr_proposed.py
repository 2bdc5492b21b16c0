"""FLR: an answer is as good as the likelihood that the person who asked goes on kindly. After arXiv:2409.13948.

    r' = r + weight (log p(kind follow-up) - log p(unkind follow-up))

each the mean over several follow-ups of the mean log-prob of their tokens after the conversation so far, under the weights that the stage
starts from. No gold answer is needed: let it add to a column such as `format`. From the paper: the likelihood of follow-ups as the reward,
with good and bad ones. Ours: their texts (set your own: `positive`, `negative`), the difference of means, and how the conversation is
written, as text within one prompt. The paper fine-tunes the judge on feedback first and then prefers answers by DPO; here the
reward is used as it is. One forward of a second model, of as many rows as there are answers times follow-ups.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping

NAME = "reward_shaping 'flr_proposed'"
POSITIVE = ["Thank you, that is exactly what I wanted to know.", "That is right and well explained."]
NEGATIVE = ["That is not what I asked.", "That is wrong, look again."]


@reward_shaping("flr_proposed", paper="arXiv:2409.13948", needs=("liked_N", "disliked_N"))
def flr_proposed(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    weight: float = 1.0,
    positive: list[str] = POSITIVE,
    negative: list[str] = NEGATIVE,
) -> Tensor:
    """Add `weight` times how much likelier kind follow-ups to the answer are than unkind ones, in mean log-prob per token.

    An answer whose conversation is too long for a prompt keeps its reward.

    Raises:
        ValueError: a negative weight, no follow-ups of a kind or an empty one, or there is no such column.
    """
    if weight < 0 or not positive or not negative or not all(text.strip() for text in (*positive, *negative)):
        raise ValueError(f"{NAME}: needs weight {weight} >= 0, and texts in positive {positive} and negative {negative}")
    k = column_index(x, reward)
    gain_N = need(x, "liked_N", NAME) - need(x, "disliked_N", NAME)
    return with_column(rewards_NK, k, rewards_NK[:, k] + weight * gain_N.nan_to_num(nan=0.0))
