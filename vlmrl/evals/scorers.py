"""How an answer is scored, by the type of its answer. Metrics are those that rewards use (`vlmrl.metrics`), without shaping."""

from __future__ import annotations

from collections.abc import Callable

from vlmrl.metrics.boxes import Box, matched_score, parse_boxes
from vlmrl.metrics.gui import action_of, arguments_score, parse_action
from vlmrl.metrics.numbers import mean_relative_accuracy, parse_number, relative_error
from vlmrl.metrics.temporal import parse_time_span, temporal_iou
from vlmrl.rewards.answer import Parsed
from vlmrl.rewards.exact import normalise
from vlmrl.rewards.rule_spatial import consistency, grounding
from vlmrl.types import Sample

Scored = tuple[tuple[float, ...] | None, tuple[float, ...], dict[str, float]]
"""Prediction (None: not readable; empty: no numbers), gold answer, scores by name in [0, 1]."""


def score_time_span(answer: str | None, sample: Sample) -> Scored:
    """Temporal IoU with reversed spans put in order, as is usual in evaluation; 0 for an answer that cannot be read."""
    gold = (float(sample.gt["time"][0]), float(sample.gt["time"][1]))
    pred = None if answer is None else parse_time_span(answer)
    return pred, gold, {"tiou": 0.0 if pred is None else temporal_iou(pred, gold, sort_times=True)}


def score_boxes(answer: str | None, sample: Sample) -> Scored:
    """IoU of the best assignment of the boxes, over the longer list. Both are in the frame of the row (`meta.frame`)."""
    gold: list[Box] = [(float(x1), float(y1), float(x2), float(y2)) for x1, y1, x2, y2 in sample.gt["boxes"]]
    boxes = None if answer is None else parse_boxes(answer)
    pred = None if boxes is None else tuple(v for box in boxes for v in box)
    return pred, tuple(v for box in gold for v in box), {"iou": 0.0 if boxes is None else matched_score(boxes, gold)}


def score_number(answer: str | None, sample: Sample) -> Scored:
    """Equality and mean relative accuracy with `gt.count` or `gt.number`, else with the row's answer as a number.

    Raises:
        ValueError: the row has no true number.
    """
    true = next((sample.gt[key] for key in ("count", "number") if sample.gt.get(key) is not None), None)
    gold = parse_number(sample.answer) if true is None else float(true)
    if gold is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): answer {sample.answer!r} is not one number; give gt.number or gt.count")
    pred = None if answer is None else parse_number(answer)
    if pred is None:
        return None, (gold,), {"exact": 0.0, "relative_accuracy": 0.0}
    return (pred,), (gold,), {"exact": float(relative_error(pred, gold) == 0), "relative_accuracy": mean_relative_accuracy(pred, gold)}


def score_text(answer: str | None, sample: Sample) -> Scored:
    """Equality with the gold answer up to case and white space, as the reward `exact`."""
    right = answer is not None and normalise(answer) == normalise(sample.answer)
    return None if answer is None else (), (), {"exact": float(right)}


def score_action(answer: str | None, sample: Sample) -> Scored:
    """Type of the action, its arguments where the row gives them (0 with a wrong type), and whether all of the step is right.

    The rules for arguments are those of the reward `gui_action`.

    Raises:
        ValueError: the row has no true action.
    """
    gold = action_of(sample.gt["action"]) if isinstance(sample.gt.get("action"), dict) else None
    if gold is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.action {sample.gt.get('action')} is not an action")
    action = None if answer is None else parse_action(answer)
    right = action is not None and action.kind == gold.kind
    scores = {"action_type": float(right)}
    if arguments_score(gold, gold) is not None:
        scores["action_arguments"] = (arguments_score(action, gold) or 0.0) if right and action is not None else 0.0
    return None if action is None else (), (), scores | {"step": float(all(value == 1 for value in scores.values()))}


SCORERS: dict[str, Callable[[str | None, Sample], Scored]] = {
    "time_span": score_time_span,
    "bbox": score_boxes,
    "number": score_number,
    "choice": score_text,
    "open": score_text,
    "action": score_action,
}
"""Answer type -> how it is scored."""


def thought_scores(parsed: Parsed, sample: Sample) -> dict[str, float]:
    """What the rules for thoughts say, where the row says what to check against: `consistency` (of right answers) and `grounding`."""
    found = {"consistency": consistency(parsed, sample), "grounding": grounding(parsed, sample)}
    return {name: value for name, value in found.items() if value is not None}
