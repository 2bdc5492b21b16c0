"""Reward `temporal_iou`: IoU of the answered time span with the true one, for temporal grounding (arXiv:2509.18056, section 3.1).

The printed formula can be negative for disjoint spans; it is clamped at 0, as in the released code. An answer without a readable
span is wrong (0). A sample without a true span is not judged (None).
"""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.metrics.temporal import parse_time_span, temporal_iou
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("temporal_iou", paper="arXiv:2509.18056")
def temporal_iou_reward(group: Group, ctx: RewardContext, *, sort_times: bool = False) -> list[float | None]:
    """Overlap of the answered time span with the true one, in [0, 1]."""
    time = group.prompt.sample.gt.get("time")
    if time is None:
        return [None] * len(group.rollouts)
    out: list[float | None] = []
    for rollout in group.rollouts:
        answer = parse(rollout.text, group.prompt.answer_format).answer
        span = None if answer is None else parse_time_span(answer)
        out.append(0.0 if span is None else temporal_iou(span, (float(time[0]), float(time[1])), sort_times=sort_times))
    return out
