"""Reward `demonstration_match_proposed`: how well an answer's clauses match those of a demonstration. After DR-IRL, arXiv:2503.18991.

W = the mean over the clauses of the response of the largest cosine to a clause of the demonstration, in [0, 1]. The demonstration is
`meta.solution` of the row, else its thought. A clause ends at . ! ? ; , : or a line break.

Ours: the cosine is that of counts of words, where the paper embeds clauses with a model; a reward of your own can do that. For reweight
`dr_irl_proposed`; as a reward it would teach to copy, so give it weight 0.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from vlmrl.answers.tags import MAX_CHARS
from vlmrl.metrics.text import rouge_tokens
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group

_CLAUSE_END = re.compile(r"[.!?;,:]\s|[.!?;,:]$|\n")
_TAG = re.compile(r"</?\w+>")


def clauses(text: str) -> list[Counter[str]]:
    """Counts of the words of each clause; tags and clauses without a word are left out."""
    parts = _CLAUSE_END.split(_TAG.sub("\n", text[-MAX_CHARS:]))
    return [counts for part in parts if (counts := Counter(rouge_tokens(part)))]


def cosine(a: Counter[str], b: Counter[str]) -> float:
    """Cosine of two counts of words, neither empty."""
    return sum(a[word] * b[word] for word in a) / math.sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values()))


def match(response: str, demonstration: str) -> float | None:
    """W; 0 for a response without words, None for a demonstration without."""
    gold, mine = clauses(demonstration), clauses(response)
    if not gold:
        return None
    return sum(max(cosine(one, other) for other in gold) for one in mine) / len(mine) if mine else 0.0


@reward("demonstration_match_proposed", paper="arXiv:2503.18991", best=None)
def demonstration_match_proposed(group: Group, ctx: RewardContext) -> list[float | None]:
    """Mean over the response's clauses of the best match with a clause of the row's demonstration, in [0, 1].

    Rows without `meta.solution` and without a thought are not judged (None).
    """
    sample = group.prompt.sample
    given = sample.meta.get("solution")
    gold = given if isinstance(given, str) and given.strip() else sample.thought or ""
    return [match(rollout.text, gold) for rollout in group.rollouts]
