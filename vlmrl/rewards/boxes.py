"""Rewards of boxes (answer type `bbox`): overlap of answered with true boxes.

Which one: `iou`, `giou` and `ciou` compare one box with one box; rows with several true boxes are not judged. `boxes_match` compares
two lists, whatever their order, by any of the three measures. `box_iou` is `boxes_match` with `measure: iou`: use it where rows have
one box or several.

Boxes are compared as they are, so answer and truth must be in one frame, which the row states (`meta.frame`; the toy world and
Qwen3-VL use 0 to 1000 along each side, Qwen2.5-VL pixels of the processed picture). IoU is the usual reward of referring expressions
(VLM-R1, arXiv:2504.07615); GIoU (arXiv:1902.09630) and CIoU (arXiv:1911.08287) still tell two misses apart, if they are not clamped.
`boxes_match` is the spatial grounding score of FGRPO (arXiv:2604.08476, eq. 1), which computes it on the boxes of the thought
(`rule_grounding` does that for the toy rows), here on those of the answer.

Ours: the clamp at 0 by default, so that no answer is worse than an unreadable one; without it an unreadable answer gets the lowest
value there is, -1, for the same reason. For `iou`, `giou` and `ciou` an answer with several boxes names no one box and is unreadable.
"""

from __future__ import annotations

from vlmrl.answers.bbox import gold_boxes
from vlmrl.answers.tags import parse
from vlmrl.metrics.boxes import MEASURES, Box, Measure, matched_score, parse_boxes, valid
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("iou", paper="arXiv:2504.07615")
def iou(group: Group, ctx: RewardContext) -> list[float | None]:
    """IoU of the one answered box with the one true box (`gt.boxes`), in [0, 1]; 0 for anything else than one readable box.

    A sample whose answer is not one box is not judged (None).
    """
    return _scored(group, "iou", clamp=True)


@reward("giou", paper="arXiv:1902.09630")
def giou(group: Group, ctx: RewardContext, *, clamp: bool = True) -> list[float | None]:
    """Generalised IoU of the one answered box, in [0, 1]; in [-1, 1] without `clamp`, then -1 for what is not one readable box.

    A sample whose answer is not one box is not judged (None).
    """
    return _scored(group, "giou", clamp=clamp)


@reward("ciou", paper="arXiv:1911.08287")
def ciou(group: Group, ctx: RewardContext, *, clamp: bool = True) -> list[float | None]:
    """Complete IoU of the one answered box, in [0, 1]; in [-1, 1] without `clamp`, then -1 for what is not one readable box.

    A sample whose answer is not one box is not judged (None).
    """
    return _scored(group, "ciou", clamp=clamp)


@reward("boxes_match", paper="arXiv:2604.08476")
def boxes_match(group: Group, ctx: RewardContext, *, measure: Measure = "ciou") -> list[float | None]:
    """Overlap of the best one-to-one assignment (Hungarian) of answered and true boxes, over the longer list; in [0, 1].

    `measure` (`iou`, `giou` or `ciou`) compares a pair, clamped at 0. Missing, repeated and superfluous boxes lower the score; an
    answer without a readable box scores 0. A sample whose answer is not boxes is not judged (None).
    """
    sample = group.prompt.sample
    if sample.answer_type != "bbox":
        return [None] * len(group.rollouts)
    gold = gold_boxes(sample)
    out: list[float | None] = []
    for rollout in group.rollouts:
        answer = parse(rollout.text, group.prompt.answer_format).answer
        boxes = None if answer is None else parse_boxes(answer)
        out.append(0.0 if boxes is None else matched_score(boxes, gold, measure))
    return out


@reward("box_iou")
def box_iou(group: Group, ctx: RewardContext) -> list[float | None]:
    """IoU of the answered box with the true one, in [0, 1]; for several, of the best assignment over the longer list.

    `boxes_match` with `measure: iou`, under the name of the metric.
    An answer without a readable box scores 0; a box whose corners are not in order overlaps nothing. A sample whose answer is not
    boxes is not judged (None).
    """
    return list(boxes_match(group, ctx, measure="iou"))


def _scored(group: Group, measure: Measure, *, clamp: bool) -> list[float | None]:
    sample = group.prompt.sample
    if sample.answer_type != "bbox" or len(sample.gt["boxes"]) != 1:
        return [None] * len(group.rollouts)
    (gold,) = gold_boxes(sample)
    # an unreadable answer gets the least that a box can get, or leaving the box out would beat a bad one
    lowest = 0.0 if clamp else -1.0
    out: list[float | None] = []
    for rollout in group.rollouts:
        box = _one_box(parse(rollout.text, group.prompt.answer_format).answer)
        out.append(lowest if box is None else max(lowest, MEASURES[measure](box, gold)))
    return out


def _one_box(answer: str | None) -> Box | None:
    boxes = None if answer is None else parse_boxes(answer)
    return boxes[0] if boxes is not None and len(boxes) == 1 and valid(boxes[0]) else None
