"""Overlap of a list of boxes with the true list, whatever their order: the spatial grounding score of FGRPO (arXiv:2604.08476, eq. 1).

There it is computed on the boxes of the thought (`rule_grounding` does that for the toy rows); here on those of the answer. The clamp
of each pair at 0 is ours, since the paper states a score in [0, 1].
"""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.metrics.boxes import Measure, matched_score, parse_boxes
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("boxes_match", paper="arXiv:2604.08476")
def boxes_match(group: Group, ctx: RewardContext, *, measure: Measure = "ciou") -> list[float | None]:
    """Overlap of the best one-to-one assignment (Hungarian) of answered and true boxes, over the longer list; in [0, 1].

    `measure` (`iou`, `giou` or `ciou`) compares a pair, clamped at 0. Missing, repeated and superfluous boxes lower the score; an
    answer without a readable box scores 0. A sample whose answer is not boxes is not judged (None).
    """
    sample = group.prompt.sample
    if sample.answer_type != "bbox":
        return [None] * len(group.rollouts)
    gold = [(float(x1), float(y1), float(x2), float(y2)) for x1, y1, x2, y2 in sample.gt["boxes"]]
    out: list[float | None] = []
    for rollout in group.rollouts:
        answer = parse(rollout.text, group.prompt.answer_format).answer
        boxes = None if answer is None else parse_boxes(answer)
        out.append(0.0 if boxes is None else matched_score(boxes, gold, measure))
    return out
