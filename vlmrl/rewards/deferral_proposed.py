"""Reward `deferral_proposed`: to answer, or to say that an expert should be asked. After HILA, arXiv:2603.07972 (its inner loop).

A right answer earns 1, a wrong one 0, and an answer that is the word of deferral earns 1 - `cost`: the expert is right, and costs. So
asking pays where the policy would be right less often than 1 - cost. With strategy `expert_answers_proposed`, which puts the expert's
answer beside the question that was asked about, and `auxiliary_losses: [{name: expo, weight: 0.1}]` the policy learns that answer: its
outer loop. The prompts have to allow the word.

Ours: cost 0.5 (the paper's could not be read), the word, and that one policy decides for itself: the paper has several agents that also
choose between each other's answers.
"""

from __future__ import annotations

from vlmrl.answers.exact_text import normalise
from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, Check, check_of
from vlmrl.types import Group

WORD = "ask an expert"


@reward("deferral_proposed", paper="arXiv:2603.07972", best=None, worker=True, imports=IMPORTS)
def deferral_proposed(
    group: Group, ctx: RewardContext, *, cost: float = 0.5, word: str = WORD, check: Check = "exact"
) -> list[float | None]:
    """1 for a right answer, 1 - `cost` for the `word` that asks an expert, else 0. A sample that the check is not for is not judged (None).

    Raises:
        ValueError: a cost outside [0, 1], or an empty word.
    """
    if not 0 <= cost <= 1 or not word.strip():
        raise ValueError(f"deferral_proposed: needs cost {cost} in [0, 1] and a word that is not empty ({word!r})")
    right_answer = check_of(check, group.prompt.sample)
    if right_answer is None:
        return [None] * len(group.rollouts)
    out: list[float | None] = []
    for rollout in group.rollouts:
        answer = parse(rollout.text, group.prompt.answer_format).answer
        right = answer is not None and right_answer(answer)
        asks = answer is not None and normalise(answer) == normalise(word)
        out.append(1.0 if right else (1 - cost) * asks)
    return out
