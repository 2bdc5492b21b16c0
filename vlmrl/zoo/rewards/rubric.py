"""Reward `rubric`: a checklist with weights, graded by a judge, as in RGR-GRPO. arXiv:2511.12344.

r = sum_j v_j * s_j / sum_j v_j, with s_j in [0, 1] the judge's grade of item j. The paper's exact weights could not be read; here they
are the row's or the recipe's, and positive. All items are graded in one request, each by its own id. The wording is ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.extras.judges.judges import JudgeQuestion
from vlmrl.extras.judges.material import pictures
from vlmrl.extras.judges.services import judged
from vlmrl.extras.judges.verdicts import items_check
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample

MOST_ITEMS = 50


@dataclass(frozen=True, kw_only=True)
class RubricItem:
    """One line of the checklist."""

    text: str
    weight: float


@reward("rubric", paper="arXiv:2511.12344", service=True)
def rubric(
    group: Group,
    ctx: RewardContext,
    *,
    endpoint: dict[str, Any],
    items: list[dict[str, Any]] | None = None,
    with_pictures: bool = True,
) -> list[float | None]:
    """Weighted mean of a judge's grades of the items of a checklist, in [0, 1].

    The checklist is the row's `gt.rubric`, else `items`: a list of `{text, weight}`, weight 1 by default. Without one, rows are not
    judged (None). An empty response scores 0. The judge sees the whole response, the question, and the row's answer as a reference.

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: the checklist is not of that form, or the prompt's pixels are not in `ctx.media`.
    """
    sample = group.prompt.sample
    checklist = checklist_of(sample, items)
    if not checklist:
        return [None] * len(group.rollouts)
    seen = pictures(group, ctx) if with_pictures else ()
    ids = [str(number) for number in range(1, len(checklist) + 1)]
    listed = "\n".join(f"{ident}: {item.text}" for ident, item in zip(ids, checklist, strict=True))
    total = sum(item.weight for item in checklist)

    def row(text: str) -> JudgeQuestion | float:
        if not text.strip():
            return 0.0
        values = {"question": sample.question, "gold": sample.answer, "checklist": listed, "response": text}
        return JudgeQuestion(template="rubric", values=values, check=items_check(ids), pictures=seen)

    def score(verdict: Mapping[str, Any]) -> float:
        return sum(item.weight * graded["score"] for item, graded in zip(checklist, verdict["items"], strict=True)) / total

    return judged(endpoint, "rubric", [row(rollout.text) for rollout in group.rollouts], score)


def checklist_of(sample: Sample, items: Sequence[Mapping[str, Any]] | None) -> list[RubricItem]:
    """The row's checklist, or the recipe's.

    Raises:
        ValueError: an item without a text or with a weight that is not positive, or too many items.
    """
    given: Any = sample.gt.get("rubric")
    where = f"row '{sample.id}' ({sample.source}): gt.rubric"
    if given is None:
        given, where = items or [], "rubric: items"
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) > MOST_ITEMS:
        raise ValueError(f"{where} must be a list of at most {MOST_ITEMS} items with 'text' and 'weight'")
    return [_item(item, f"{where}.{i}") for i, item in enumerate(given)]


def _item(item: Any, where: str) -> RubricItem:
    if not isinstance(item, Mapping) or not set(item) <= {"text", "weight"}:
        raise ValueError(f"{where} must have 'text' and, if need be, 'weight', and nothing else; got {item!r}")
    text, weight = item.get("text"), item.get("weight", 1.0)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}.text must be a text that is not empty")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ValueError(f"{where}.weight must be a positive number, got {weight!r}")
    return RubricItem(text=" ".join(text.split()), weight=float(weight))
