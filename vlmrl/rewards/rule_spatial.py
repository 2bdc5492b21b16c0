"""Rewards `rule_consistency`, `rule_grounding`: rules in place of FGRPO's judges (arXiv:2604.08476), for toy worlds (`metrics.spatial`).

A judge reads free text; these read sentences of one form, exactly and at once, so that a constraint can be tried and tested without
a second model. On any other text they find nothing and give 0. As in the paper, consistency is judged only where the answer is
right, or coherent wrong answers would satisfy it; an empty thought is inconsistent and ungrounded, or not thinking would be a way
out.
"""

from __future__ import annotations

import re

from vlmrl.answers.exact_text import normalise
from vlmrl.answers.tags import Parsed, parse
from vlmrl.metrics.spatial import as_relation, grounded_share, is_consistent, read_thought
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample


def consistency(parsed: Parsed, sample: Sample) -> float | None:
    """Score 1 if the thought's conclusion implies the given answer and its boxes do not contradict it, else 0.

    Where the sample lists the possible answers (`meta.choices`), the conclusion is the last of them that the thought names. None for a
    wrong or missing answer, and for a sample with neither `gt.relation` nor `meta.choices`.
    """
    choices: list[str] = [normalise(str(one)) for one in sample.meta.get("choices", ())]
    if not choices and sample.gt.get("relation") is None:
        return None
    if parsed.answer is None or normalise(parsed.answer) != normalise(sample.answer):
        return None
    if choices:
        named = [word for word in re.findall(r"\w+", normalise(parsed.thought or "")) if word in choices]
        # a slice, so that a thought that names no choice is inconsistent instead of an IndexError
        return float(named[-1:] == [normalise(parsed.answer)])
    return float(is_consistent(read_thought(parsed.thought or ""), as_relation(sample.gt["relation"]), parsed.answer))


def grounding(parsed: Parsed, sample: Sample, *, threshold: float = 0.5) -> float | None:
    """Compute the share of the objects whose box in the thought is right; None for a sample without `gt.objects` (name -> true box).

    Returns:
        A share in [0, 1] of the larger number of boxes and objects.
    """
    objects = sample.gt.get("objects")
    if not objects:
        return None
    gold = {str(name).lower(): (float(b[0]), float(b[1]), float(b[2]), float(b[3])) for name, b in objects.items()}
    return grounded_share(read_thought(parsed.thought or ""), gold, threshold=threshold)


@reward("rule_consistency")
def rule_consistency(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the thought's conclusion implies the given answer and its boxes do not contradict it, else 0; a rule of the toy worlds.

    None for a wrong or missing answer, and for a sample with neither `gt.relation` nor `meta.choices`.
    """
    sample = group.prompt.sample
    return [consistency(parse(rollout.text, group.prompt.answer_format), sample) for rollout in group.rollouts]


@reward("rule_grounding")
def rule_grounding(group: Group, ctx: RewardContext, *, threshold: float = 0.5) -> list[float | None]:
    """Share of the objects whose box in the thought is right (IoU >= `threshold`), over the larger number of boxes and objects.

    A rule of the toy world. None for a sample without `gt.objects` (name -> true box). The paper's score uses the overlap itself
    (`metrics.boxes.matched_score` with CIoU), this one counts.
    """
    sample = group.prompt.sample
    return [grounding(parse(rollout.text, group.prompt.answer_format), sample, threshold=threshold) for rollout in group.rollouts]
