"""Rewards `tracking`, `spatio_temporal`: boxes over time, as OneThinker (arXiv:2512.03043) scores them.

Rows have `gt.track` = {"<frame>": [x1, y1, x2, y2], ...}, or `gt.tube` = {"time": [start, end], "boxes": {...}}; an answer is
`{"boxes": {...}}`, of a tube with `"time"`. Boxes are compared in the frame of reference of the row. The paper's defaults are kept;
averaging over other frames is ours (`metrics.tracking.track_iou`), as are frames that are numbers and not texts.
"""

from __future__ import annotations

from vlmrl.answers.spatio_temporal import tube_overlap
from vlmrl.answers.tags import parse
from vlmrl.metrics.tracking import Over, parse_track, parse_tube, track_iou, track_of, tube_of
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample


@reward("tracking", paper="arXiv:2512.03043")
def tracking(group: Group, ctx: RewardContext, *, over: Over = "gold") -> list[float | None]:
    """Mean IoU of the answered track with the true one (`gt.track`), in [0, 1]; a frame without a box counts 0.

    `over`: `gold` averages over the true frames, `union` over all named ones, so that superfluous boxes cost too; `common` only over
    those of both. An answer without a readable track scores 0. A sample without a true track is not judged (None).

    Raises:
        ValueError: `gt.track` is malformed.
    """
    sample = group.prompt.sample
    if sample.gt.get("track") is None:
        return [None] * len(group.rollouts)
    gold = track_of(sample.gt["track"])
    if not gold:
        raise _malformed(sample, "track")
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    tracks = [None if answer is None else parse_track(answer) for answer in answers]
    return [0.0 if track is None else track_iou(track, gold, over=over) for track in tracks]


@reward("spatio_temporal", paper="arXiv:2512.03043")
def spatio_temporal(
    group: Group, ctx: RewardContext, *, w_time: float = 0.5, w_boxes: float = 0.5, over: Over = "common"
) -> list[float | None]:
    """Weighted temporal IoU and mean box IoU of the answered tube with the true one (`gt.tube`), over the sum of the weights; in [0, 1].

    `over` says which frames the box IoU averages: `common` (the paper's) only those that both name, so that one easy frame is enough;
    `gold` or `union` make missing ones cost. A part of an answer that cannot be read counts 0, and so does a reversed time span. A
    sample without a true tube is not judged (None).

    Raises:
        ValueError: a negative weight or both 0, or `gt.tube` is malformed.
    """
    if min(w_time, w_boxes) < 0 or w_time + w_boxes <= 0:
        raise ValueError(f"spatio_temporal: weights must not be negative nor both 0, got {w_time}, {w_boxes}")
    sample = group.prompt.sample
    if sample.gt.get("tube") is None:
        return [None] * len(group.rollouts)
    gold = tube_of(sample.gt["tube"]) if isinstance(sample.gt["tube"], dict) else None
    if gold is None or gold.time is None or not gold.boxes:
        raise _malformed(sample, "tube")
    out: list[float | None] = []
    for rollout in group.rollouts:
        answer = parse(rollout.text, group.prompt.answer_format).answer
        when, where = tube_overlap(None if answer is None else parse_tube(answer), gold, over=over)
        out.append((w_time * when + w_boxes * where) / (w_time + w_boxes))
    return out


def _malformed(sample: Sample, key: str) -> ValueError:
    return ValueError(f"row '{sample.id}' ({sample.source}): gt.{key} {str(sample.gt[key])[:80]} has no readable boxes by frame")
