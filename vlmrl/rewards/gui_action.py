"""One step on a screen: form, type of the action, and its arguments where the type is right.

    R = w_format * form + w_type * type + w_args * type * arguments

Inspired by the rule checks that CRAFT-GUI (arXiv:2508.11360) reports. Ours: all of it, since the paper's formula and weights could
not be read; the click rule (inside the true box, else within 0.14 of the true point) is that of TON (arXiv:2505.16854).
"""

from __future__ import annotations

from vlmrl.metrics.gui import RADIUS, Action, action_of, arguments_score, parse_action
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.answer import Parsed, parse
from vlmrl.types import Group


@reward("gui_action")
def gui_action(
    group: Group,
    ctx: RewardContext,
    *,
    w_format: float = 0.1,
    w_type: float = 0.3,
    w_args: float = 0.6,
    radius: float = RADIUS,
) -> list[float | None]:
    """Weighted score of form, action type and arguments, over the sum of the weights: in [0, 1], 1 for the true action.

    Arguments count only with the right type (`metrics.gui.arguments_score` has the rules). Where the row gives no true arguments,
    their weight is left out. A sample without `gt.action` is not judged (None).

    Raises:
        ValueError: a negative weight, all weights 0, or a `gt.action` that is no action.
    """
    if min(w_format, w_type, w_args) < 0 or w_type <= 0:
        raise ValueError(f"gui_action: weights must not be negative and w_type positive, got {w_format}, {w_type}, {w_args}")
    sample = group.prompt.sample
    if sample.gt.get("action") is None:
        return [None] * len(group.rollouts)
    gold = action_of(sample.gt["action"])
    if gold is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): gt.action {sample.gt['action']} is not an action")
    weights = (w_format, w_type, w_args)
    return [_score(parse(rollout.text, group.prompt.template), gold, weights, radius) for rollout in group.rollouts]


def _score(parsed: Parsed, gold: Action, weights: tuple[float, float, float], radius: float) -> float:
    """Form is that of the tags and of the JSON: an answer that is no action has none of the three."""
    w_format, w_type, w_args = weights
    action = None if parsed.answer is None else parse_action(parsed.answer)
    known = arguments_score(gold, gold, radius=radius) is not None
    full = w_format + w_type + (w_args if known else 0.0)
    if action is None:
        return 0.0
    score = w_format * parsed.format_ok
    if action.kind == gold.kind:
        score += w_type
        if known:
            score += w_args * (arguments_score(action, gold, radius=radius) or 0.0)
    return score / full
