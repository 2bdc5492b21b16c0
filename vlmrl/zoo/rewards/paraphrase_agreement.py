"""Reward `paraphrase_agreement`: how much an answer agrees with those to other wordings of its question. PS-GRPO, arXiv:2510.04392.

    r(i, j) = 1 / ((n - 1) g) * sum over wordings u other than i, and over their g answers m, of sim(o_ij, o_um)

sim is BLEU-2, the paper's best; all pairs are compared (the paper also estimates the sum from some of them). The paper adds it to a reward
of the answer. Ours: answers are compared, not thoughts; `gated` gives agreement to right answers only, so that being wrong
alike earns nothing; texts of one word are compared by words alone; rows of one wording are not judged (None).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from vlmrl.answers.tags import parse
from vlmrl.metrics.text import rouge_tokens
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, Check, check_of
from vlmrl.types import Group

MOST = 512
"""Words of an answer that are compared."""


def bleu2(candidate: Sequence[str], reference: Sequence[str]) -> float:
    """Geometric mean of the clipped precisions of words and pairs of words, times the brevity penalty, in [0, 1]; without smoothing."""
    orders = min(2, len(candidate), len(reference))
    if orders == 0:
        return 0.0
    logs = 0.0
    for n in range(1, orders + 1):
        mine, theirs = (Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (candidate, reference))
        overlap = sum((mine & theirs).values())
        if overlap == 0:
            return 0.0
        logs += math.log(overlap / sum(mine.values())) / orders
    return min(1.0, math.exp(1 - len(reference) / len(candidate))) * math.exp(logs)


@reward("paraphrase_agreement", paper="arXiv:2510.04392", best=None, compares=True, worker=True, imports=IMPORTS)
def paraphrase_agreement(group: Group, ctx: RewardContext, *, gated: bool = True, check: Check = "exact") -> list[float | None]:
    """Mean BLEU-2 with the answers to the other wordings of the question, in [0, 1]; with `gated` 0 for answers that are wrong by `check`.

    Without other wordings in the group, and with `gated` for a sample that the check is not for, nobody is judged (None).
    """
    right_answer = check_of(check, group.prompt.sample) if gated else lambda answer: True
    wording = [group.prompt.sample.question if r.guidance is None else r.guidance.question for r in group.rollouts]
    if right_answer is None or len(set(wording)) < 2:
        return [None] * len(wording)
    answers = [parse(r.text, group.prompt.answer_format).answer for r in group.rollouts]
    words = [rouge_tokens(answer or "")[:MOST] for answer in answers]
    out: list[float | None] = []
    for i, answer in enumerate(answers):
        others = [words[j] for j in range(len(words)) if wording[j] != wording[i]]
        right = answer is not None and right_answer(answer)
        out.append(sum(bleu2(words[i], other) for other in others) / len(others) if right else 0.0)
    return out
