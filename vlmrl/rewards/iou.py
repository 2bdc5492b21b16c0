"""Overlap of one answered box with the one true box, by three measures.

Both boxes are compared as they are, in the frame that the row states (`meta.frame`). IoU is the usual reward of referring expressions
(VLM-R1, arXiv:2504.07615); GIoU (arXiv:1902.09630) and CIoU (arXiv:1911.08287) still tell two misses apart, if they are not clamped.

Ours: the clamp at 0 by default, so that no answer is worse than an unreadable one; without it an unreadable answer gets the lowest
value there is, -1, for the same reason. An answer with several boxes names no one box and counts as unreadable: `boxes_match` is for
lists. Rows with several true boxes are not judged here.
"""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.metrics.boxes import MEASURES, Box, Measure, parse_boxes, valid
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


def _scored(group: Group, measure: Measure, *, clamp: bool) -> list[float | None]:
    sample = group.prompt.sample
    if sample.answer_type != "bbox" or len(sample.gt["boxes"]) != 1:
        return [None] * len(group.rollouts)
    x1, y1, x2, y2 = sample.gt["boxes"][0]
    gold = (float(x1), float(y1), float(x2), float(y2))
    lowest = 0.0 if clamp else -1.0
    out: list[float | None] = []
    for rollout in group.rollouts:
        box = _one_box(parse(rollout.text, group.prompt.answer_format).answer)
        out.append(lowest if box is None else max(lowest, MEASURES[measure](box, gold)))
    return out


def _one_box(answer: str | None) -> Box | None:
    boxes = None if answer is None else parse_boxes(answer)
    return boxes[0] if boxes is not None and len(boxes) == 1 and valid(boxes[0]) else None
