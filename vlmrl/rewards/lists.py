"""Reward `listed_items`, and what Rank-GRPO reads of an answer that is a list. arXiv:2510.20150, with the authors' code.

An answer is a list of items, one per line. An item hits if it is one of the row's items (`meta.items`) that no earlier line named, and none
of those that may not be named (`meta.excluded`); a hit uses its item up, so repeating it earns nothing. Lines are compared without case
and spacing, and without a number or dash in front.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample

_BULLET = re.compile(r"^\s*(?:\d{1,3}[.)]|[-*])\s+")
MOST = 1000
"""Lines of an answer."""


def plain(line: str) -> str:
    """Normalise an item for comparison."""
    return " ".join(_BULLET.sub("", line, count=1).casefold().split())


def items_of(sample: Sample, key: str) -> list[str]:
    """Read the normalised items of `meta.<key>` of a row; none where the row has no such key.

    Returns:
        Texts in the order of the row, in the form that `plain` gives.

    Raises:
        ValueError: it is no list of texts.
    """
    given: Any = sample.meta.get(key, [])
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise ValueError(f"row '{sample.id}' ({sample.source}): meta.{key} must be a list of texts")
    return [plain(text) for text in given]


def lines_of(answer: str) -> list[str]:
    return [line for line in answer.split("\n")[:MOST] if line.strip()]


def hits(lines: Sequence[str], sample: Sample) -> list[float]:
    """Mark each line: 1 if it hits, else 0.

    Returns:
        One number per line. A line that repeats one, or is among `meta.excluded`, does not hit.

    Raises:
        ValueError: as `items_of`.
    """
    left, excluded = items_of(sample, "items"), items_of(sample, "excluded")
    out: list[float] = []
    for line in map(plain, lines):
        hit = line in left and line not in excluded
        if hit:
            # used up: a repeated line does not hit again
            left.remove(line)
        out.append(float(hit))
    return out


def later_gain(hit: Sequence[float]) -> list[float]:
    """Sum the discounted gain from each rank on: sum over j >= k of hit_j / log2(j + 1), ranks from 1. Earlier ranks count for nobody.

    Returns:
        One gain per rank, in the order of `hit`.
    """
    out: list[float] = []
    total = 0.0
    # from the last rank to the first: every suffix sum in one pass
    for rank in range(len(hit), 0, -1):
        total += hit[rank - 1] / math.log2(rank + 1)
        out.append(total)
    return out[::-1]


@reward("listed_items", paper="arXiv:2510.20150", best=None)
def listed_items(group: Group, ctx: RewardContext, *, items: int = 20) -> list[float | None]:
    """Share of hits among the first `items` lines of the answer, in [0, 1]; 0 without an answer. Rows without items are not judged (None).

    Raises:
        ValueError: no items are asked for, or the row's are no list of texts.
    """
    if items < 1:
        raise ValueError(f"listed_items: items is {items}; it must be at least 1")
    sample = group.prompt.sample
    if "items" not in sample.meta:
        return [None] * len(group.rollouts)
    answers = [parse(rollout.text, group.prompt.answer_format).answer or "" for rollout in group.rollouts]
    return [sum(hits(lines_of(answer)[:items], sample)) / items for answer in answers]
