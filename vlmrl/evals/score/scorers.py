"""How an answer is scored, by the type of its answer. Metrics are those that rewards use (`vlmrl.metrics`), without shaping."""

from __future__ import annotations

from collections.abc import Callable

from vlmrl.answers.tags import Parsed
from vlmrl.evals.score.gui_scores import profile_scores
from vlmrl.metrics.boxes import Box, iou, matched_score, parse_boxes
from vlmrl.metrics.gui import action_of, arguments_score, parse_action
from vlmrl.metrics.moments import (
    CLIP,
    HighlightQuery,
    clip_scores,
    highlight_average_precision,
    highlight_hit,
    highlight_score,
    moment_map,
    parse_highlights,
)
from vlmrl.metrics.numbers import mean_relative_accuracy, parse_number, relative_error
from vlmrl.metrics.ocr import accuracy, anls, word_error_rate
from vlmrl.metrics.points import parse_points, parse_segmentation, segmentation_of, segmentation_score
from vlmrl.metrics.relaxed import contains_answer
from vlmrl.metrics.temporal import parse_time_span, temporal_iou
from vlmrl.metrics.text import read_choice, relaxed_accuracy
from vlmrl.metrics.tracking import parse_track, parse_tube, track_iou, track_of, tube_of
from vlmrl.rewards.checks import Check, check_of, gold_answers, options_of
from vlmrl.rewards.exact import same_text
from vlmrl.rewards.points import pointing_score
from vlmrl.rewards.rule_spatial import consistency, grounding
from vlmrl.rewards.tracking import tube_overlap
from vlmrl.types import Sample

Scored = tuple[tuple[float, ...] | None, tuple[float, ...], dict[str, float]]
"""Prediction (None: not readable; empty: no numbers), gold answer, scores by name in [0, 1]."""


def score_time_span(answer: str | None, sample: Sample) -> Scored:
    """Temporal IoU with reversed spans put in order, as is usual in evaluation; 0 for an answer that cannot be read.

    Where the row lists all true windows (`gt.windows`), the one that fits best counts, and the mAP of QVHighlights is there as well.
    """
    gold = (float(sample.gt["time"][0]), float(sample.gt["time"][1]))
    pred = None if answer is None else parse_time_span(answer)
    windows = [(float(start), float(end)) for start, end in sample.gt.get("windows") or [gold]]
    scores = {"tiou": 0.0 if pred is None else max(temporal_iou(pred, window, sort_times=True) for window in windows)}
    if "windows" in sample.gt:
        scores["moment_map"] = moment_map(windows, [] if pred is None else [pred])
    return pred, gold, scores


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
    """Equality with the gold answer up to case and white space, or one of `gt.accepted` in it, as the reward `exact`."""
    return None if answer is None else (), (), {"exact": float(answer is not None and same_text(answer, sample))}


def score_choice(answer: str | None, sample: Sample) -> Scored:
    """Whether the answer means the right option, as the reward `choice`; one that means no option, or several, cannot be read.

    Raises:
        ValueError: the row is not of answer type `choice`, or its options cannot be used.
    """
    options = options_of(sample)
    readable = answer is not None and (read_choice(sample.answer, options) is None or read_choice(answer, options) is not None)
    return () if readable else None, (), {"exact": _right("choice", answer, sample)}


def score_math(answer: str | None, sample: Sample) -> Scored:
    """Mathematical equality, as the reward `math`. Raises ValueError for a row of another answer type."""
    return None if answer is None else (), (), {"exact": _right("math", answer, sample)}


def _right(check: Check, answer: str | None, sample: Sample) -> float:
    right = check_of(check, sample)
    if right is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): answer type '{sample.answer_type}' is not scored as '{check}'")
    return float(answer is not None and right(answer))


def score_ocr(answer: str | None, sample: Sample) -> Scored:
    """ANLS, 1 - word error rate, ChartQA's relaxed accuracy, and OCRBench's rule (a true answer stands in the answer; `gt.formula`: white
    space aside), each with the best of `answer` and `gt.answers`.

    Raises:
        ValueError: `gt.answers` is not a list of texts.
    """
    golds = gold_answers(sample)
    if answer is None:
        return None, (), {"anls": 0.0, "word_accuracy": 0.0, "relaxed": 0.0, "contained": 0.0}
    scores = {
        "anls": anls(answer, golds),
        "word_accuracy": accuracy(word_error_rate, answer, golds),
        "relaxed": float(any(relaxed_accuracy(answer, gold) for gold in golds)),
        "contained": float(contains_answer(answer, golds, formula=bool(sample.gt.get("formula")))),
    }
    return (), (), scores


def score_action(answer: str | None, sample: Sample) -> Scored:
    """Type of the action, its arguments where the row gives them (0 with a wrong type), and whether all of the step is right.

    The rules for arguments are those of the reward `gui_action`. Beside them the rules of published evaluations, each under its name.

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
    whole = {"step": float(all(value == 1 for value in scores.values()))}
    return None if action is None else (), (), scores | whole | profile_scores(answer, sample)


def score_point(answer: str | None, sample: Sample) -> Scored:
    """Points on the true mask, in a true box or near a true point, whichever the row gives (`rewards.points.pointing_score`).

    Raises:
        ValueError: the row gives none of them, or not the frame that it needs.
    """
    points = None if answer is None else parse_points(answer)
    pred = None if points is None else tuple(v for point in points for v in point)
    gold = tuple(float(v) for point in sample.gt.get("points") or () for v in point)
    return pred, gold, {"point": pointing_score(answer or "", sample)}


def score_highlight(answer: str | None, sample: Sample) -> Scored:
    """Score and F2 of the reward `highlight`; with `gt.saliency` also HIT@1 and mAP of QVHighlights at "Very Good".

    HIT@1 of an answer that cannot be read is 0; its mAP is that of equal scores for all clips, as the metric defines it.
    """
    gold = [(float(t), float(s)) for t, s in sample.gt["highlights"]]
    read = None if answer is None else parse_highlights(answer)
    clip = float(sample.gt.get("clip_seconds") or CLIP)
    found = highlight_score(read or (), gold, clip=clip)
    scores = {"highlight": found["score"], "highlight_f2": found["f2"]}
    saliency = sample.gt.get("saliency")
    if saliency is not None:
        clips = clip_scores(read or (), float(saliency["duration"]), clip=clip)
        query = HighlightQuery(scores=clips, clips=saliency["clips"], saliency=saliency["scores"])
        per_annotator = highlight_average_precision(query)
        scores["highlight_hit1"] = 0.0 if read is None else highlight_hit(query)
        scores["highlight_map"] = sum(per_annotator) / len(per_annotator)
    flat = tuple(v for pair in gold for v in pair)
    return None if read is None else tuple(v for pair in read for v in pair), flat, scores


def score_tracking(answer: str | None, sample: Sample) -> Scored:
    """Mean IoU over the true frames, as the reward `tracking`."""
    gold = track_of(sample.gt["track"]) or {}
    track = None if answer is None else parse_track(answer)
    return None if track is None else (), (), {"track_iou": 0.0 if track is None else track_iou(track, gold, over="gold")}


def score_tube(answer: str | None, sample: Sample) -> Scored:
    """Temporal IoU (reversed spans put in order) and mean box IoU over the frames of both tubes: vIoU."""
    gold = tube_of(sample.gt["tube"])
    if gold is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.tube cannot be read")
    tube = None if answer is None else parse_tube(answer)
    when, where = tube_overlap(tube, gold, over="union", sort_times=True)
    return None if tube is None else (), (), {"tube_iou": where, "tiou": when}


def score_segmentation(answer: str | None, sample: Sample) -> Scored:
    """The reward `segmentation_points`, and the IoU of the box."""
    gold = segmentation_of(sample.gt["segmentation"])
    if gold is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.segmentation cannot be read")
    read = None if answer is None else parse_segmentation(answer)
    if read is None:
        return None, gold.box, {"segmentation": 0.0, "iou": 0.0}
    return read.box, gold.box, {"segmentation": segmentation_score(read, gold), "iou": iou(read.box, gold.box)}


SCORERS: dict[str, Callable[[str | None, Sample], Scored]] = {
    "time_span": score_time_span,
    "bbox": score_boxes,
    "number": score_number,
    "regression": score_number,
    "choice": score_choice,
    "math": score_math,
    "short_text": score_ocr,
    "exact_text": score_text,
    "action": score_action,
    "point": score_point,
    "highlight": score_highlight,
    "tracking": score_tracking,
    "spatio_temporal": score_tube,
    "segmentation": score_segmentation,
}
"""Answer type -> how it is scored."""


def thought_scores(parsed: Parsed, sample: Sample) -> dict[str, float]:
    """What the rules for thoughts say, where the row says what to check against: `consistency` (of right answers) and `grounding`."""
    found = {"consistency": consistency(parsed, sample), "grounding": grounding(parsed, sample)}
    return {name: value for name, value in found.items() if value is not None}
