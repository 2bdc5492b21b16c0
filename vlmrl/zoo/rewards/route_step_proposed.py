"""Reward `route_step_proposed`: one step of a question that is answered by several retrievals. After R1-Router, arXiv:2505.22095.

Rows are steps: the question of one holds what was retrieved before it, so a group never mixes steps (Step-GRPO). A step that retrieves has
`meta.route = {"query": the sub-question, "retriever": its name}` and is answered with

    <query>sub-question</query><retriever>name</retriever>

It earns 0.5 sim + 0.5 [exactly one retriever is named, and it is the row's], sim the likeness of the sub-questions. A missing or unclosed
tag, a retriever that does not exist, and "none" beside another one earn 0. A row without `meta.route` is the step that answers. It earns
the share of the gold answer's words that it contains; for a gold answer of up to `short` words only all of them count.

From the authors' code: the terms, their weights and the zeros. Ours: the names of the tags; sim is the F1 of the words, where they take
the cosine of an embedding model; `strict` takes F1 in place of recall in the answering step, as recall does not mind superfluous words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from vlmrl.answers.tags import MAX_CHARS, parse
from vlmrl.metrics.text import rouge_n, rouge_tokens
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample

RETRIEVERS = ("text", "text-image", "table", "none")
NOTHING = "none"
_TAGS = re.compile(r"<query>([^<]*)</query>\s*<retriever>([^<]*)</retriever>", re.IGNORECASE)


def route_of(sample: Sample) -> tuple[str, str] | None:
    """(sub-question, retriever) of a step that retrieves; None for a step that answers.

    Raises:
        ValueError: `meta.route` is not an object of two texts.
    """
    given: Any = sample.meta.get("route")
    if given is None:
        return None
    if not isinstance(given, dict) or not all(isinstance(given.get(key), str) and given[key].strip() for key in ("query", "retriever")):
        raise ValueError(f"row '{sample.id}' ({sample.source}): meta.route must be an object with the texts 'query' and 'retriever'")
    return given["query"].strip(), given["retriever"].strip().casefold()


def retrieval_score(answer: str, query: str, retriever: str, known: Sequence[str]) -> float:
    """Score of a step that retrieves, in [0, 1]."""
    found = _TAGS.search(answer[-MAX_CHARS:])
    if found is None:
        return 0.0
    named = [name.strip().casefold() for name in found[2].split(",")]
    if any(name not in known for name in named) or (NOTHING in named and len(set(named)) > 1):
        return 0.0
    likeness = rouge_n(rouge_tokens(found[1]), rouge_tokens(query), 1) or 0.0
    return 0.5 * likeness + 0.5 * (named == [retriever])


def answer_score(answer: str, gold: str, *, short: int, strict: bool) -> float:
    """Score of the step that answers, in [0, 1]: recall of the gold answer's words."""
    given, wanted = rouge_tokens(answer), rouge_tokens(gold)
    recall = sum(word in given for word in wanted) / len(wanted) if wanted else 0.0
    if len(wanted) <= short and recall < 1:
        return 0.0
    return (rouge_n(given, wanted, 1) or 0.0) if strict else recall


@reward("route_step_proposed", paper="arXiv:2505.22095", best=None)
def route_step_proposed(
    group: Group, ctx: RewardContext, *, retrievers: list[str] | None = None, short: int = 5, strict: bool = False
) -> list[float | None]:
    """How near a sub-question and its retriever are to the row's (`meta.route`); of rows without, recall of the answer's words. In [0, 1].

    Raises:
        ValueError: a negative `short`, or the row's route is malformed or names a retriever that is not in `retrievers`.
    """
    if short < 0:
        raise ValueError(f"route_step_proposed: short is {short}; it must not be negative")
    known = tuple(name.casefold() for name in (RETRIEVERS if retrievers is None else retrievers))
    sample = group.prompt.sample
    route = route_of(sample)
    if route is not None and route[1] not in known:
        raise ValueError(f"row '{sample.id}' ({sample.source}): meta.route.retriever '{route[1]}' is none of {', '.join(known)}")
    answers = [parse(rollout.text, group.prompt.answer_format).answer or "" for rollout in group.rollouts]
    if route is None:
        return [answer_score(answer, sample.answer, short=short, strict=strict) for answer in answers]
    return [retrieval_score(answer, *route, known) for answer in answers]
