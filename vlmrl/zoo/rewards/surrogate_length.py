"""Reward `surrogate_length`: form and length stand in for ground truth. arXiv:2505.19439, with the authors' code.

x = L / maximum, at most 1; f(x) = 1 - (1 - x / p)^2 up to the turning point p, 1 - 2 ((x - p) / (1 - p))^2 beyond: 0 for an empty
answer, 1 at p, -1 at the limit. An answer without the form earns min(0, f). It pulls lengths to p * maximum whatever is right: a
baseline and a test of the machinery, not an objective. Set `maximum` to the recipe's limit on new tokens. Ours: the authors' terms for
the form are left to the reward `format`.
"""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


def parabola(share: float, turn: float) -> float:
    """f of a share of the longest answer, in [-1, 1]."""
    return 1 - (1 - share / turn) ** 2 if share <= turn else 1 - 2 * ((share - turn) / (1 - turn)) ** 2


@reward("surrogate_length", paper="arXiv:2505.19439", best=None, no_truth=True)
def surrogate_length(group: Group, ctx: RewardContext, *, maximum: int, turn: float = 0.5) -> list[float | None]:
    """Rises to 1 at `turn` times `maximum` tokens and falls to -1 at `maximum`; at most 0 without the form.

    Raises:
        ValueError: a maximum below 1, or a turning point outside (0, 1).
    """
    if maximum < 1 or not 0 < turn < 1:
        raise ValueError(f"surrogate_length: needs maximum {maximum} >= 1 and turn {turn} in (0, 1)")
    out: list[float | None] = []
    for rollout in group.rollouts:
        value = parabola(min(1.0, len(rollout.ids) / maximum), turn)
        out.append(value if parse(rollout.text, group.prompt.answer_format).format_ok else min(0.0, value))
    return out
