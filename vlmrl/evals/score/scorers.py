"""Scorers give an answer its scores: that of its answer type, and those of plug-ins.

    @scorer("words")
    def words(parsed: Parsed, sample: Sample) -> dict[str, float]: ...

A plug-in's scorer runs on every answer; a metric makes its score a column (`answers.base.METRICS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES, Scored
from vlmrl.answers.tags import Parsed
from vlmrl.evals.score.steps import step_scores, true_steps
from vlmrl.registry import Catalogue
from vlmrl.rewards.rule_spatial import consistency, grounding
from vlmrl.types import Sample

Scorer = Callable[[Parsed, Sample], Mapping[str, float]]
"""Scores in [0, 1] by name; none for rows that it is not for."""
SCORERS: Catalogue[Scorer] = Catalogue("scorer")
_NO_OPTIONS: Mapping[str, Any] = {}


def scorer(name: str) -> Callable[[Scorer], Scorer]:
    """Register a function under `name`. Raises ValueError if it is taken."""

    def register(function: Scorer) -> Scorer:
        SCORERS.add(name, function)
        return function

    return register


def score(answer: str | None, parsed: Parsed, sample: Sample, options: Mapping[str, Any] = _NO_OPTIONS) -> Scored:
    """Score an answer: prediction, gold answer and all scores. `parsed` is the completion that it was read from, `options` are those of
    the answer type's own scoring (`Task.scoring`).

    Raises:
        ValueError: the row lacks what scoring needs, or two scorers give a score of the same name.
    """
    pred, gold, scores = ANSWER_TYPES[sample.answer_type].score(answer, sample, **options)
    for name, more in SCORERS.items():
        added = more(parsed, sample)
        if added.keys() & scores.keys():
            raise ValueError(f"scorer '{name}' gives {sorted(added.keys() & scores.keys())}, which the answer has already; rename them")
        scores |= added
    return pred, gold, scores


@scorer("thought_rules")
def thought_scores(parsed: Parsed, sample: Sample) -> dict[str, float]:
    """What the rules for thoughts say, where the row says what to check against: `consistency` (of right answers) and `grounding`.

    Where a row lists the possible answers (`meta.choices`) and the thought was left out, there is nothing to be consistent.
    """
    skipped = "choices" in sample.meta and not (parsed.thought or "").strip()
    found = {"consistency": None if skipped else consistency(parsed, sample), "grounding": grounding(parsed, sample)}
    return {name: value for name, value in found.items() if value is not None}


@scorer("thought_steps")
def thought_step_scores(parsed: Parsed, sample: Sample) -> dict[str, float]:
    """How many of the true steps that a row states its thought has: `steps_right` and `steps_all_right`."""
    return step_scores(parsed.thought, true_steps(sample))
