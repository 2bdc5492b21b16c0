"""Rewards `length`, `overlong`, `cosine_length`: length in sampled tokens (with the end token), next to a reward of the answer.

`best` is what the gold answer must reach in the self test (the default is 1): a penalty's is 0, and None where it is up to the
arguments.
"""

from __future__ import annotations

import math

from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, Check, check_of
from vlmrl.types import Group


@reward("length", paper="arXiv:2604.08539", shortens="all answers")
def length(group: Group, ctx: RewardContext, *, low: int, high: int, maximum: int, minimum: int = 0) -> list[float | None]:
    """1 between `low` and `high` tokens, falling linearly to 0 at `minimum` and at `maximum`, 0 beyond: in [0, 1].

    The envelope of OpenVLThinkerV2 (eq. 9) as a column of its own, for all rows alike; the shape `length_envelope` has one per task.
    A ramp without width is a step. A rollout without token ids has no known length (None).

    Raises:
        ValueError: not 0 <= minimum <= low <= high <= maximum.
    """
    if not 0 <= minimum <= low <= high <= maximum:
        raise ValueError(f"length: needs 0 <= minimum <= low <= high <= maximum, got {minimum}, {low}, {high}, {maximum}")

    def envelope(tokens: int) -> float:
        if tokens < minimum or tokens > maximum:
            return 0.0
        if tokens < low:
            return (tokens - minimum) / (low - minimum)
        return (maximum - tokens) / (maximum - high) if tokens > high else 1.0

    return [envelope(len(rollout.ids)) if rollout.ids else None for rollout in group.rollouts]


@reward("overlong", paper="arXiv:2503.14476", best=0.0)
def overlong(group: Group, ctx: RewardContext, *, maximum: int, buffer: int) -> list[float | None]:
    """DAPO's soft overlong punishment (eq. 13), in [-1, 0]: 0 up to `maximum - buffer` tokens, then linearly to -1 at `maximum`.

    The column's weight scales it. -1 beyond the maximum, where that does not cut responses off. The shape `soft_overlong` adds the
    same to another column. Set `maximum` to the recipe's limit on new tokens: the paper's are 20480 and 4096.

    Raises:
        ValueError: not 0 < buffer <= maximum.
    """
    if not 0 < buffer <= maximum:
        raise ValueError(f"overlong: needs 0 < buffer <= maximum, got buffer {buffer} and maximum {maximum}")
    # DAPO eq. 13: (L_max - L_cache - |y|) / L_cache, with the sign turned: the share of the buffer that is used up
    over = [(len(rollout.ids) - (maximum - buffer)) / buffer for rollout in group.rollouts]
    # no -0.0 for the many answers within the limit
    return [-min(1.0, share) if share > 0 else 0.0 for share in over]


@reward("cosine_length", paper="arXiv:2502.03373", best=None, shortens="right answers", worker=True, imports=IMPORTS)
def cosine_length(
    group: Group,
    ctx: RewardContext,
    *,
    maximum: int,
    check: Check = "exact",
    correct_short: float = 1.0,
    correct_long: float = 0.5,
    wrong_short: float = -1.0,
    wrong_long: float = -0.5,
    exceeded: float = -1.0,
) -> list[float | None]:
    """The cosine reward of "Demystifying Long Chain-of-Thought Reasoning in LLMs": right answers gain by being short, wrong ones by
    being long.

    For L tokens, with (short, long) of right or of wrong answers: long + (short - long) / 2 * (1 + cos(pi L / maximum)), which is
    `short` at 0 and `long` at `maximum`; `exceeded` from `maximum` on, whatever the answer. Right is what `check` says; a missing
    answer is wrong. Rows that the check is not for are not judged (None). The paper has 2, 1, -10, 0 and -10 for the five values;
    the defaults are open-r1's, and ours for `exceeded`, which it does not have.

    Raises:
        ValueError: `maximum` is not positive, or a right answer could be worth less than a wrong one of another length.
    """
    if maximum <= 0:
        raise ValueError(f"cosine_length: maximum must be positive, got {maximum}")
    if min(correct_short, correct_long) <= max(wrong_short, wrong_long):
        raise ValueError(
            f"cosine_length: right answers get {correct_short} to {correct_long}, wrong ones {wrong_short} to {wrong_long}; "
            "every right one must get more than every wrong one"
        )
    right = check_of(check, group.prompt.sample)
    if right is None:
        return [None] * len(group.rollouts)
    out: list[float | None] = []
    for rollout in group.rollouts:
        answer = parse(rollout.text, group.prompt.answer_format).answer
        correct = answer is not None and right(answer)
        short, long = (correct_short, correct_long) if correct else (wrong_short, wrong_long)
        # `short` at L = 0, `long` at L = maximum: long + (short - long) / 2 * (1 + cos(pi L / maximum))
        tokens = len(rollout.ids)
        out.append(exceeded if tokens >= maximum else long + (short - long) / 2 * (1 + math.cos(math.pi * tokens / maximum)))
    return out
