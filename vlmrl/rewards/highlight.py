"""Reward `highlight`: highlight detection, time stamps with a saliency each, as TempSamp-R1 (arXiv:2509.18056) scores it.

    R = 0.6 * F2 + 0.4 / (1 + WMSE)

The answer is a list of (seconds, saliency), as JSON `{"highlights": [[seconds, saliency], ...]}` or as text
`1.0, 3.0 seconds. scores 4.5, 3.0`; the row has `gt.highlights` in the JSON form, and `gt.clip_seconds` where a clip is not two seconds
long. How stamps match, and what a missed one counts, is
ours: see `metrics.moments.highlight_score`.
"""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.metrics.moments import CLIP, highlight_score, parse_highlights
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("highlight", paper="arXiv:2509.18056")
def highlight(group: Group, ctx: RewardContext, *, w_f2: float = 0.6, w_saliency: float = 0.4) -> list[float | None]:
    """Weighted F2 of the named clips and closeness of their saliency, over the sum of the weights; in [0, 1].

    An answer without readable highlights scores 0. A sample without `gt.highlights` is not judged (None).

    Raises:
        ValueError: a negative weight or both 0, or two true highlights lie in one clip.
    """
    gt = group.prompt.sample.gt
    gold = gt.get("highlights")
    if gold is None:
        return [None] * len(group.rollouts)
    clip = float(gt.get("clip_seconds") or CLIP)
    true = [(float(t), float(s)) for t, s in gold]
    out: list[float | None] = []
    for rollout in group.rollouts:
        answer = parse(rollout.text, group.prompt.answer_format).answer
        pred = None if answer is None else parse_highlights(answer)
        scores = highlight_score(pred or (), true, clip=clip, w_f2=w_f2, w_saliency=w_saliency)
        out.append(scores["score"])
    return out
