"""Reward `refine_proposed`: right, in sections, with references between them and an honest confidence. After ReFIne, arXiv:2510.09062.

r = (right + sections + references + confidence) / 4. Sections: `<understanding>`, `<facts>`, `<plan>`, `<think>`, `<answer>` and
`<self_assessment>`, each once and in this order. References: the share of the first three names that the thought mentions. Confidence:
1 - (p - right)^2 with p the stated confidence of 10, a proper score: saying what one believes is best. An answer without one has p 0.5
and loses a further 1.

Terms and weights are the authors' code's. Ours: the names of the tags (theirs could not be read), what counts as a mention (the word, in
any case), and how a confidence is read (`confidence: 7` or `7/10` in the last section). The prompt must ask for the sections, which
no answer format of the package does: put it into the questions of the rows, and fine-tune on such answers first, as the paper does.
"""

from __future__ import annotations

import itertools
import re

from vlmrl.answers.tags import MAX_CHARS
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, Check, check_of
from vlmrl.types import Group

NAMED = ("understanding", "facts", "plan")
SECTIONS = (*NAMED, "think", "answer", "self_assessment")
_TAG = re.compile(rf"<(/?)({'|'.join(SECTIONS)})>", re.IGNORECASE)
_CONFIDENCE = re.compile(r"confidence\D{0,20}?(\d{1,3}(?:\.\d{1,3})?)", re.IGNORECASE)


def sections(text: str) -> tuple[dict[str, str], bool]:
    """(content of each section that is closed, whether all of them stand once and in order). One pass over the text."""
    tags = list(_TAG.finditer(text[-MAX_CHARS:]))
    found: dict[str, str] = {}
    for opening, closing in itertools.pairwise(tags):
        if not opening[1] and closing[1] and opening[2].lower() == closing[2].lower():
            found.setdefault(opening[2].lower(), text[-MAX_CHARS:][opening.end() : closing.start()])
    order = [(tag[1], tag[2].lower()) for tag in tags]
    return found, order == [(slash, name) for name in SECTIONS for slash in ("", "/")]


def refine_score(right: bool, whole: bool, references: float, confidence: float | None) -> float:
    """The mean of the four terms; `confidence` is of 10, None where none is stated."""
    stated = 0.5 if confidence is None else min(max(confidence / 10, 0.0), 1.0)
    honest = 1 - (stated - right) ** 2 - (confidence is None)
    return (right + whole + references + honest) / 4


@reward("refine_proposed", paper="arXiv:2510.09062", worker=True, imports=IMPORTS, best=None)
def refine_proposed(group: Group, ctx: RewardContext, *, check: Check = "exact") -> list[float | None]:
    """Mean of four terms: right by `check`, in sections, with references between them, and with a calibrated confidence; at most 1.

    A sample that the check is not for is not judged (None).
    """
    right_answer = check_of(check, group.prompt.sample)
    if right_answer is None:
        return [None] * len(group.rollouts)
    out: list[float | None] = []
    for rollout in group.rollouts:
        found, whole = sections(rollout.text)
        thought, answer = found.get("think", "").lower(), found.get("answer")
        references = sum(name in thought for name in NAMED) / len(NAMED)
        stated = _CONFIDENCE.search(found.get("self_assessment", ""))
        right = answer is not None and right_answer(answer.strip())
        out.append(refine_score(right, whole, references, None if stated is None else float(stated[1])))
    return out
