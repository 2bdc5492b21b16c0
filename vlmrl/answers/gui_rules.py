"""Scores a GUI step by every published rule, side by side: a step success rate says nothing without the name of its rule.

Rows are of answer type `action`, with `gt.action`; points and boxes in 0 to 1000, or in the frame that `meta.frame` states. For the rule
of AITW, `gt.elements` may list the boxes of the screen's elements; without them there is the box of the true one, where the row has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from vlmrl.answers.frame import Size, sides_of, size_of
from vlmrl.metrics.boxes import Box, centre
from vlmrl.metrics.gui import POINTING, RADIUS, Action, action_of, parse_action, to_norm1000
from vlmrl.metrics.gui_profiles import SCREEN, Profile, StepMatch, aitw_tap, match_step, ton
from vlmrl.types import Sample

RULES = (*get_args(Profile), "ton_reward", "aitw")
"""Names of the rules: the profiles of `metrics.gui_profiles`, and two more for clicks."""
PARTS = ("type", "grounding", "step")


def profile_scores(answer: str | None, sample: Sample) -> dict[str, float]:
    """Score an answer by every rule: `type_<rule>`, `grounding_<rule>` and `step_<rule>`, each 0 or 1, absent where a rule counts it not.

    The rules are `os_atlas`, `gui_r1`, `ui_r1` and `ton` as their evaluations have them (`metrics.gui_profiles`; `ton` with clicks within
    0.2), `ton_reward`, the same with the 0.14 of TON's reward, and `aitw`: clicks within 0.14, or both in one element after enlarging it
    (arXiv:2307.10088), the rest as `ton`. Means over the rows that have a name are the published rates.

    `ui_r1` measures in pixels: rows without `meta.size` ([width, height] of the screen) have its type only. An answer that is no action
    (also None) is wrong in each rule.

    Raises:
        ValueError: the row has no true action, an unknown frame, or pixels without `meta.size`.
    """
    size = size_of(sample)
    gold, elements = _truth(sample)
    pred = None if answer is None else parse_action(answer)
    if pred is not None:
        pred = to_norm1000(pred, sides_of(sample))
    out: dict[str, float] = {}
    for rule, match in _matches(pred, gold, elements, size).items():
        parts = zip(PARTS, (match.type, match.grounding, match.step), strict=True)
        out |= {f"{part}_{rule}": float(value) for part, value in parts if value is not None}
    return out


def aitw(pred: Action | None, gold: Action, elements: tuple[Box, ...]) -> StepMatch:
    """Compare a step by the rule of AITW (arXiv:2307.10088) for clicks, and that of TON for all else; everything in 0 to 1000.

    Returns:
        Whether its type, its place (`grounding`) and all of it (`step`) are right; for all but clicks as `ton` says.
    """
    if gold.kind not in POINTING:
        return ton(pred, gold)
    right = pred is not None and pred.kind == gold.kind
    # the row's point, else the centre of its box
    target = gold.point if gold.point is not None or gold.box is None else centre(gold.box)
    hit = pred is not None and pred.point is not None and target is not None and aitw_tap(pred.point, target, elements)
    return StepMatch(type=right, grounding=right and hit, step=right and hit)


def _matches(pred: Action | None, gold: Action, elements: tuple[Box, ...], size: Size | None) -> dict[str, StepMatch]:
    out = {profile: match_step(pred, gold, profile=profile, screen=size or SCREEN) for profile in get_args(Profile)}
    if size is None:
        out["ui_r1"] = replace(out["ui_r1"], grounding=None, step=None)
    return out | {"ton_reward": ton(pred, gold, radius=RADIUS), "aitw": aitw(pred, gold, elements)}


def _truth(sample: Sample) -> tuple[Action, tuple[Box, ...]]:
    """The true action and the boxes of elements, in 0 to 1000."""
    given = sample.gt.get("action")
    gold = action_of(given) if isinstance(given, dict) else None
    if gold is None:
        raise ValueError(f"{_where(sample)}: gt.action {str(given)[:80]} is not an action")
    listed = sample.gt.get("elements")
    # the reader of actions, so that boxes of elements are held to the same form as those of answers
    read = [action_of({"action": "click", "box": box}) for box in listed] if isinstance(listed, list) else []
    boxes = [None if one is None else one.box for one in read]
    if (listed is not None and not isinstance(listed, list)) or None in boxes:
        raise ValueError(f"{_where(sample)}: gt.elements {str(listed)[:80]} is not a list of [x1, y1, x2, y2]")
    # the true element's box counts also where the screen's elements are not listed
    elements = [box for box in [*boxes, gold.box] if box is not None]
    side = sides_of(sample)
    scaled = [to_norm1000(Action(kind="click", box=box), side).box for box in elements]
    return to_norm1000(gold, side), tuple(box for box in scaled if box is not None)


def _where(sample: Sample) -> str:
    return f"row '{sample.id}' ({sample.source})"
