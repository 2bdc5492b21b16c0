"""Reward `gui_action`: one step on a screen, by form, type of the action, and its arguments where the type is right.

    R = w_format * form + w_type * type + w_args * type * arguments

Inspired by the rule checks that CRAFT-GUI (arXiv:2508.11360) reports. Ours: all of it, since the paper's formula and weights could
not be read; the click rule (inside the true box, else within 0.14 of the true point) is that of TON (arXiv:2505.16854). TON's own
reward for AITZ, r_f + r_d + r_c, is the profile `ton` with equal weights, over their sum.
"""

from __future__ import annotations

from typing import Literal

from vlmrl.answers.frame import pixels_of, sides_of
from vlmrl.answers.tags import Parsed, parse
from vlmrl.metrics.gui import POINTING, RADIUS, Action, action_of, arguments_score, parse_action, to_norm1000
from vlmrl.metrics.gui_profiles import match_step, ton
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample

Profile = Literal["exact", "os_atlas", "gui_r1", "ui_r1", "ton"]


@reward("gui_action")
def gui_action(
    group: Group,
    ctx: RewardContext,
    *,
    profile: Profile = "exact",
    w_format: float = 0.1,
    w_type: float = 0.3,
    w_args: float = 0.6,
    radius: float = RADIUS,
) -> list[float | None]:
    """Weighted score of form, action type and arguments, over the sum of the weights: in [0, 1], 1 for the true action.

    Arguments count only with the right type. `profile` says how they are compared: `exact` by `metrics.gui.arguments_score` (clicks
    inside the true box, typed text by F1 of its words); `os_atlas`, `gui_r1` and `ui_r1` as the evaluations of these names do, 0 or 1
    (`metrics.gui_profiles`); `ton` as TON's reward: a scroll in another direction is of another type, of arguments where one clicks
    counts and nothing else, and form is that of the tags, whatever stands in them. Where the row gives no true
    arguments, or the profile does not count them, their weight is left out. `radius` is for `exact` and `ton`. Rows in pixels
    (`meta.frame` is `pixel`) and the profile `ui_r1` need `meta.size`, [width, height] of the screen in pixels. A sample without
    `gt.action` is not judged (None). An answer that is no action scores 0, whatever its form (but with `ton`).

    Raises:
        ValueError: a negative weight, w_type 0, a radius for a profile that has its own, a `gt.action` that is no action, or an unknown
            `meta.frame`, or a missing or bad `meta.size`.
    """
    if min(w_format, w_type, w_args) < 0 or w_type <= 0:
        raise ValueError(f"gui_action: weights must not be negative and w_type positive, got {w_format}, {w_type}, {w_args}")
    if profile not in ("exact", "ton") and radius != RADIUS:
        raise ValueError(f"gui_action: profile '{profile}' has its own radius; leave 'radius' out, or use the profile 'exact' or 'ton'")
    sample = group.prompt.sample
    if sample.gt.get("action") is None:
        return [None] * len(group.rollouts)
    judge = _Judge(sample, profile, (w_format, w_type, w_args), radius)
    return [judge.score(parse(rollout.text, group.prompt.answer_format)) for rollout in group.rollouts]


class _Judge:
    """Scores answers to one row."""

    def __init__(self, sample: Sample, profile: Profile, weights: tuple[float, float, float], radius: float):
        self.profile: Profile = profile
        self.weights = weights
        self.radius = radius
        self.sides = sides_of(sample)
        self.screen = pixels_of(sample) if profile == "ui_r1" else (1000.0, 1000.0)
        gold = action_of(sample.gt["action"]) if isinstance(sample.gt["action"], dict) else None
        if gold is None:
            raise ValueError(f"row '{sample.id}' ({sample.source}): gt.action {sample.gt['action']} is not an action")
        self.gold = to_norm1000(gold, self.sides)
        # the true action against itself: None where the row gives no arguments to compare, or the profile counts none
        self.known = arguments_score(self.gold, self.gold) is not None and self.arguments(self.gold) is not None

    def arguments(self, action: Action) -> float | None:
        """Score how well the arguments match, for an action of the right type; None where they do not count."""
        if self.profile == "exact":
            return arguments_score(action, self.gold, radius=self.radius)
        if self.profile == "ton":
            return float(ton(action, self.gold, radius=self.radius).step or False) if self.gold.kind in POINTING else None
        step = match_step(action, self.gold, profile=self.profile, screen=self.screen).step
        return None if step is None else float(step)

    def score(self, parsed: Parsed) -> float:
        """Form is that of the tags, and but for `ton` of the JSON too: an answer that is no action has none of the three."""
        w_format, w_type, w_args = self.weights
        action = None if parsed.answer is None else parse_action(parsed.answer)
        if action is None and self.profile != "ton":
            return 0.0
        score = w_format * parsed.format_ok
        if action is not None:
            action = to_norm1000(action, self.sides)
            if self.same_type(action):
                score += w_type
                if self.known:
                    score += w_args * (self.arguments(action) or 0.0)
        # over the weights that apply, so that the true action gets 1 with and without arguments
        return score / (w_format + w_type + (w_args if self.known else 0.0))

    def same_type(self, action: Action) -> bool:
        return ton(action, self.gold).type if self.profile == "ton" else action.kind == self.gold.kind
