"""Reward `masa`: how well the policy foretells its own answers. arXiv:2510.03259, with the authors' code.

The strategy of the same name asks for a forecast next to the solutions. Its reward is the mean of three terms, each 0 where its field is
missing or no forecast can be read:

    pass rate   0.01^|p - foretold / 8|, p the share of right solutions
    length      1 where the shortest right solution < foretold < the longest, in tokens; 0 without a right one
    notions     of the named notions that do not stand in the question, the share that more right than wrong solutions contain

Ours: notions are looked for without regard to case; without a notion that counts, the third term is 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, Check, check_of
from vlmrl.types import Group

OF = 8
"""Attempts that a forecast counts the right ones of."""
MOST_NOTIONS, MOST_CHARS = 32, 4000


def forecast(answer: str | None) -> Mapping[str, Any] | None:
    """The JSON object of an answer; None where it is none."""
    if answer is None or len(answer) > MOST_CHARS:
        return None
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def number(value: object) -> float | None:
    """A finite JSON number that is no truth value; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e9 and math.isfinite(value) else None


def pass_rate_term(foretold: float | None, share: float) -> float:
    return 0.0 if foretold is None or not 0 <= foretold <= OF else 0.01 ** abs(share - foretold / OF)


def length_term(foretold: float | None, right_lengths: Sequence[int]) -> float:
    return float(foretold is not None and bool(right_lengths) and min(right_lengths) < foretold < max(right_lengths))


def notion_term(notions: object, question: str, solutions: Sequence[tuple[str, bool]]) -> float:
    """`solutions`: (text, whether it is right)."""
    if not isinstance(notions, list):
        return 0.0
    named = dict.fromkeys(n.strip().casefold() for n in notions[:MOST_NOTIONS] if isinstance(n, str) and n.strip())
    told = [n for n in named if n not in question.casefold()]
    texts = [(text.casefold(), right) for text, right in solutions]
    leads = [sum((1 if right else -1) for text, right in texts if notion in text) for notion in told]
    return sum(lead > 0 for lead in leads) / len(leads) if leads else 0.0


@reward("masa", paper="arXiv:2510.03259", best=None, compares=True, worker=True, imports=IMPORTS)
def masa(group: Group, ctx: RewardContext, *, check: Check = "exact") -> list[float | None]:
    """Mean of three terms for each forecast of the group, in [0, 1]; the solutions, and a group without, are not judged (None).

    A solution is right by `check`; a sample that the check is not for is not judged.
    """
    right_answer = check_of(check, group.prompt.sample)
    own = [r for r in group.rollouts if r.on_policy]
    if right_answer is None or not own:
        return [None] * len(group.rollouts)
    answers = [parse(r.text, group.prompt.answer_format).answer for r in own]
    right = [answer is not None and right_answer(answer) for answer in answers]
    lengths = [len(r.ids) for r, ok in zip(own, right, strict=True) if ok]
    solutions = [(r.text, ok) for r, ok in zip(own, right, strict=True)]
    out: list[float | None] = []
    for rollout in group.rollouts:
        if rollout.guidance is None:
            out.append(None)
            continue
        found = forecast(parse(rollout.text, group.prompt.answer_format).answer) or {}
        terms = (
            pass_rate_term(number(found.get("pass_rate")), sum(right) / len(right)),
            length_term(number(found.get("solution_length")), lengths),
            notion_term(found.get("notions"), group.prompt.sample.question, solutions),
        )
        out.append(sum(terms) / len(terms))
    return out
