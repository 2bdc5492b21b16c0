"""Reward `open_rouge`: ROUGE of a free-form answer, the words that it shares with the gold answer."""

from __future__ import annotations

from vlmrl.answers.short_text import gold_answers
from vlmrl.answers.tags import parse
from vlmrl.metrics.text import mean_rouge
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("open_rouge", paper="arXiv:2503.21776")
def open_rouge(group: Group, ctx: RewardContext) -> list[float | None]:
    """Mean of ROUGE-1, ROUGE-2 and ROUGE-L F1 with the best gold answer (`answer` and `gt.answers`), in [0, 1].

    The reward of open answers in Video-R1. Ours: no stemming; a gold answer of one word is scored without ROUGE-2. Only for rows of
    answer type `exact_text` whose gold answers have words (else None).
    """
    sample = group.prompt.sample
    golds = gold_answers(sample) if sample.answer_type == "exact_text" else []
    return [_best(parse(rollout.text, group.prompt.answer_format).answer or "", golds) for rollout in group.rollouts]


def _best(answer: str, golds: list[str]) -> float | None:
    values = [value for gold in golds if (value := mean_rouge(answer, gold)) is not None]
    return max(values) if values else None
