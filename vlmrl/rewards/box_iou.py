"""Overlap of the answered boxes with the true ones.

Both are compared as they are, so they must be in one frame: the one that the row states (`meta.frame`; the toy world and Qwen3-VL
use 0 to 1000 along each side, Qwen2.5-VL pixels of the processed picture; `metrics.boxes.convert` maps them when rows are made).
"""

from __future__ import annotations

from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.boxes_match import boxes_match
from vlmrl.types import Group


@reward("box_iou")
def box_iou(group: Group, ctx: RewardContext) -> list[float | None]:
    """IoU of the answered box with the true one, in [0, 1]; for several, of the best assignment over the longer list.

    An answer without a readable box scores 0; a box whose corners are not in order overlaps nothing. A sample whose answer is not
    boxes is not judged (None).
    """
    return list(boxes_match(group, ctx, measure="iou"))
