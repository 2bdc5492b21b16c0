"""Reward `repetition`: a penalty for repeated n-grams."""

from __future__ import annotations

from vlmrl.metrics.repetition import repeated_share, words_of
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("repetition", paper="arXiv:2502.03373", best=None)
def repetition(group: Group, ctx: RewardContext, *, size: int = 3) -> list[float | None]:
    """Minus the share of n-grams of `size` words that occurred before in the completion: in (-1, 0].

    Appendix C.2 of the paper as open-r1 computes it; the column's weight is its largest penalty. Words are what stands between white
    space, in lower case: text without spaces has one, and is not punished. All text repeats some n-grams, so the gold answer need
    not reach 0 (`best=None`).

    Raises:
        ValueError: `size` < 1.
    """
    if size < 1:
        raise ValueError(f"repetition: size must be at least 1, got {size}")
    shares = [repeated_share(words_of(rollout.text), size) for rollout in group.rollouts]
    # no -0.0
    return [-share if share else 0.0 for share in shares]
