"""QVHighlights: moment retrieval, highlight detection, and highlights in text. All results are shares, not percent.

Follows the evaluation of QVHighlights (arXiv:2107.09609). Times in seconds; a clip is two seconds of the video.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vlmrl.metrics.boxes import json_object, numbers
from vlmrl.metrics.temporal import Span, temporal_iou

THRESHOLDS = tuple(i / 100 for i in range(50, 100, 5))
"""IoU 0.50, 0.55, ..., 0.95."""
MOST_MOMENTS = 10
"""Predictions per query that count."""
LEVELS = {"fair": 2, "good": 3, "very_good": 4}
"""Saliency (0 to 4) from which an annotator's clip is a highlight."""
CLIP = 2.0
Highlights = Sequence[tuple[float, float]]
"""(seconds, saliency) each."""
_CAP = 4096
_MOST = 128
_NUMBER = re.compile(r"(?<![\d.])\d{1,9}(?:\.\d{1,9})?(?![\d.]*\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class HighlightQuery:
    scores: Sequence[float]
    """Predicted saliency of every clip of the video."""
    clips: Sequence[int]
    """Indices of the relevant clips."""
    saliency: Sequence[Sequence[int]]
    """For each relevant clip the annotators' 0 to 4; the others are 0."""


def moment_map(gold: Sequence[Span], pred: Sequence[Span]) -> float:
    """Compute mAP of one query: `moment_average_precision` averaged over IoU 0.5, 0.55, ..., 0.95."""
    return float(np.mean([moment_average_precision(gold, pred, t) for t in THRESHOLDS]))


def moment_average_precision(gold: Sequence[Span], pred: Sequence[Span], threshold: float) -> float:
    """Compute interpolated average precision of one query at one IoU threshold (>=).

    Args:
        gold: the true moments, in seconds.
        pred: best first; `MOST_MOMENTS` count. Each takes the free true moment with the largest IoU, if that reaches the threshold.

    Returns:
        In [0, 1]; 0 without predictions.

    Raises:
        ValueError: no true moments.
    """
    if not gold:
        raise ValueError("moment_average_precision: a query without true moments")
    free = set(range(len(gold)))
    hits: list[int] = []
    for span in pred[:MOST_MOMENTS]:
        overlap = {j: temporal_iou(span, gold[j], sort_times=True) for j in free}
        # the earlier true moment among equals
        best = max(overlap, key=lambda j: (overlap[j], -j), default=None)
        hit = best is not None and overlap[best] >= threshold
        if hit and best is not None:
            free.remove(best)
        hits.append(int(hit))
    right = np.cumsum(hits)
    # precision and recall after 1, 2, ... predictions; precision is then the best at this recall or a larger one
    precision = np.concatenate([[0.0], right / np.arange(1, len(hits) + 1), [0.0]])
    recall = np.concatenate([[0.0], right / len(gold), [1.0]])
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall) * precision[1:]))


def _levels(query: HighlightQuery, threshold: int) -> np.ndarray:
    """Bool [clips, annotators]: what counts as a highlight."""
    if len(query.clips) != len(query.saliency):
        raise ValueError(f"highlight query: {len(query.clips)} clips but {len(query.saliency)} saliencies")
    if not query.clips or not query.scores:
        raise ValueError("highlight query: no relevant clips or no scores")
    if not 0 <= min(query.clips) <= max(query.clips) < len(query.scores):
        raise ValueError(f"highlight query: clips {list(query.clips)} of a video with {len(query.scores)} clips")
    full = np.zeros((len(query.scores), len(query.saliency[0])))
    full[list(query.clips)] = np.asarray(query.saliency)
    return full >= threshold


def highlight_hit(query: HighlightQuery, level: str = "very_good") -> float:
    """Compute HIT@1: 1 if the clip with the highest score (the first of equals) is a highlight for any annotator.

    Raises:
        ValueError: clips, saliencies and scores do not fit together.
    """
    return float(_levels(query, LEVELS[level])[int(np.argmax(query.scores))].any())


def highlight_average_precision(query: HighlightQuery, level: str = "very_good") -> list[float]:
    """Compute AP for each annotator: interpolated precision averaged over the distinct recalls that thresholds on the scores give.

    Clips of equal score enter together. 0 for an annotator without a highlight, 1 where every clip is one.

    Returns:
        One AP per annotator, each in [0, 1].

    Raises:
        ValueError: clips, saliencies and scores do not fit together.
    """
    return [_precision(np.asarray(query.scores, dtype=float), column) for column in _levels(query, LEVELS[level]).T]


def _precision(scores: np.ndarray, true: np.ndarray) -> float:
    if true.all() or not true.any():
        return float(true.all())
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.nonzero(np.diff(scores[order]))[0], len(scores) - 1)  # of each run of equal scores
    right = np.cumsum(true[order])[last]
    precision = np.maximum.accumulate((right / (last + 1))[::-1])[::-1]
    # thresholds at which a highlight was added: only these change the recall
    new = np.diff(right, prepend=0) > 0
    return float(precision[new].mean())


def clip_of(seconds: float, *, clip: float = CLIP) -> int:
    """Find the clip that a time lies in: clip i is [i * clip, (i + 1) * clip)."""
    return int(seconds // clip)


def clip_scores(highlights: Highlights, duration: float, *, clip: float = CLIP) -> list[float]:
    """Compute the predicted saliency of each of the int(duration / clip) clips: the highest one given for it, 0 where none is.

    Times after the end are left out.
    """
    out = [0.0] * int(duration / clip)
    for seconds, score in highlights:
        place = clip_of(seconds, clip=clip)
        if place < len(out):
            out[place] = max(out[place], score)
    return out


def parse_highlights(text: str) -> list[tuple[float, float]] | None:
    """Read the highlights that an answer gives as (seconds, saliency); None if it gives none.

    Read as JSON `{"highlights": [[seconds, saliency], ...]}`, else as `1.0, 3.0 seconds. scores 4.5, 3.0`: as many numbers before the
    first word "score" as after it. At most 128.
    """
    tail = text[-_CAP:]
    value = json_object(tail, brackets=_MOST + 2)
    if value is not None:
        return highlights_of(value.get("highlights"))
    before, word, after = tail.lower().partition("score")
    times, scores = _NUMBER.findall(before), _NUMBER.findall(after)
    if not word or not times or len(times) != len(scores):
        return None
    return [(float(t), float(s)) for t, s in zip(times, scores, strict=True)][:_MOST]


def highlights_of(value: object) -> list[tuple[float, float]] | None:
    """Read a JSON list of [seconds, saliency], both >= 0; None if it is anything else or empty."""
    if not isinstance(value, list) or not value:
        return None
    read = [numbers(item, 2) for item in value[:_MOST]]
    return None if any(r is None or min(r) < 0 for r in read) else [(r[0], r[1]) for r in read if r is not None]


def f2(precision: float, recall: float) -> float:
    """Compute 5 P R / (4 P + R), in [0, 1]; 0 if both are 0."""
    return 5 * precision * recall / (4 * precision + recall) if precision + recall > 0 else 0.0


def highlight_score(
    pred: Highlights, gold: Highlights, *, clip: float = CLIP, w_f2: float = 0.6, w_saliency: float = 0.4
) -> Mapping[str, float]:
    """Compute `f2`, `wmse` and `score` = w_f2 * F2 + w_saliency / (1 + WMSE): the highlight reward of TempSamp-R1 (arXiv:2509.18056).

    F2 is of the clips that both name; WMSE is the squared error of saliency over the true clips, weighted with the true saliency
    squared, the weights summing to 1. Ours, since the paper leaves it open: stamps match if they lie in one clip, a clip named again is
    a superfluous prediction whose saliency does not count, a true clip that is not named counts as saliency 0, and no prediction
    scores 0.

    Raises:
        ValueError: no true highlight has a saliency above 0, a length or a weight is not positive, or a true clip occurs twice.
    """
    if clip <= 0 or min(w_f2, w_saliency) < 0 or w_f2 + w_saliency <= 0:
        raise ValueError(f"highlight_score: clip and weights must be positive, got {clip}, {w_f2}, {w_saliency}")
    true = {clip_of(t, clip=clip): s for t, s in gold}
    if len(true) != len(gold) or not any(s > 0 for s in true.values()):
        raise ValueError(f"highlight_score: true highlights need one saliency per {clip:g} s clip and one of them above 0")
    named: dict[int, float] = {}
    for seconds, saliency in pred:
        named.setdefault(clip_of(seconds, clip=clip), saliency)
    right = len(named.keys() & true.keys())
    share = f2(right / len(pred), right / len(true)) if pred else 0.0
    most = max(true.values())
    weights = {c: (s / most) ** 2 for c, s in true.items()}  # over the largest first: the square of a tiny saliency would be 0
    wmse = sum(weights[c] * (named.get(c, 0.0) - s) ** 2 for c, s in true.items()) / sum(weights.values())
    total = (w_f2 * share + w_saliency / (1 + wmse)) if pred else 0.0
    return {"f2": share, "wmse": wmse, "score": total / (w_f2 + w_saliency)}
