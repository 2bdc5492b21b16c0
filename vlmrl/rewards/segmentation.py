"""Reward `segmentation_points`: the box and points that prompt a segmenter, as OneThinker (arXiv:2512.03043) scores them.

Rows have `gt.segmentation` = {"boxes": [x1, y1, x2, y2], "positive_points": [[x, y], ...], "negative_points": [[x, y], ...]}, of a
video with "time": seconds of the frame that they are on; the answer is the same JSON. All in the frame of reference of the row. The
released code asks for exactly three points of each kind; here for as many as the row has.
"""

from __future__ import annotations

from typing import Any

from vlmrl.answers.tags import parse
from vlmrl.metrics.points import SIGMA, parse_segmentation, segmentation_of, segmentation_score
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("segmentation_points", paper="arXiv:2512.03043")
def segmentation_points(group: Group, ctx: RewardContext, *, sigma: float = SIGMA) -> list[float | None]:
    """Weighted IoU of the box and similarity of the points (of a video also of the time) with `gt.segmentation`; in [0, 1].

    `sigma` is the distance, in units of the row's frame, at which the similarity of points has fallen to 0.61. An answer that cannot be
    read, or has another number of points, scores 0. A sample without `gt.segmentation` is not judged (None).

    Raises:
        ValueError: `sigma` is not positive, or `gt.segmentation` is malformed.
    """
    sample = group.prompt.sample
    true: Any = sample.gt.get("segmentation")
    if true is None:
        return [None] * len(group.rollouts)
    if sigma <= 0:
        raise ValueError(f"segmentation_points: sigma must be positive, got {sigma}")
    gold = segmentation_of(true) if isinstance(true, dict) else None
    if gold is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.segmentation {str(true)[:80]} is not a box with points")
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    read = [None if answer is None else parse_segmentation(answer) for answer in answers]
    return [0.0 if pred is None else segmentation_score(pred, gold, sigma=sigma) for pred in read]
