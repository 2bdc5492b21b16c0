"""Rewards without ground truth: agreement with what the group itself answers. They compare rollouts, and gold answers earn nothing here.

`majority_vote`: the most common answer is the label (TTRL, arXiv:2504.16084). `vote` weighs ballots, as RLCCF (arXiv:2508.12338) weighs the
ballots of several models by each model's agreement with itself; with one model the two are the same. `urpa`: the mean of the answered
time spans is the label, and the overlap with it counts less where the spans disagree (arXiv:2508.06317). `ttrv`: no label; an answer earns
how often the group gives it, less the entropy of what the group answers (arXiv:2510.06783).

Common rules: an answer that cannot be read has no vote and earns 0; of equally heavy answers the one that came first wins; rows that the
policy did not sample have no vote. Answers are compared without case and spacing. A label is only as good as the policy: watch how often
answers agree while training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vlmrl.algo.registries import advantage as advantages
from vlmrl.algo.rules import names
from vlmrl.answers.tags import parse
from vlmrl.metrics.temporal import Span, parse_time_span, temporal_iou
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


def vote(answers: Sequence[Sequence[str | None]]) -> str | None:
    """The answer with the most weight over several models, each of whose ballots weighs the share of its most common answer.

    `answers`: by model; None where nothing could be read. None if nobody answered.
    """
    weight: dict[str, float] = {}
    for ballots in answers:
        given = [answer for answer in ballots if answer is not None]
        agreement = max((given.count(answer) for answer in given), default=0) / max(1, len(given))
        for answer in given:
            weight[answer] = weight.get(answer, 0.0) + agreement
    return max(weight, key=lambda answer: weight[answer], default=None)


def _answers(group: Group) -> list[str | None]:
    found = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [None if answer is None or not answer.strip() else " ".join(answer.casefold().split()) for answer in found]


@reward("majority_vote", paper="arXiv:2504.16084", best=None, compares=True, no_truth=True)
def majority_vote(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 for the answer that most rollouts of the group give, else 0; None where no answer can be read."""
    answers = _answers(group)
    label = vote([[answer for answer, rollout in zip(answers, group.rollouts, strict=True) if rollout.on_policy]])
    return [None if label is None else float(answer == label) for answer in answers]


def shares(votes: Sequence[str | None]) -> tuple[dict[str, float], float]:
    """(answer -> its share of the votes, entropy of the votes over that of as many different ones in equal parts, in [0, 1]).

    Votes that could not be read, None, count together as one more answer, of which no share is given.
    """
    counts: dict[str | None, int] = {}
    for answer in votes:
        counts[answer] = counts.get(answer, 0) + 1
    found = {answer: count / len(votes) for answer, count in counts.items()}
    entropy = -math.fsum(share * math.log(share) for share in found.values())
    return {answer: share for answer, share in found.items() if answer is not None}, entropy / math.log(max(2, len(found)))


@reward("ttrv", paper="arXiv:2510.06783", best=None, compares=True, no_truth=True)
def ttrv(group: Group, ctx: RewardContext, *, alpha: float = 0.75) -> list[float | None]:
    """Share of the group's rollouts that give the same answer, less alpha times the entropy of their answers; None where none can be read.

    The entropy, over the logarithm of the number of different answers, is one number for a group: an advantage that subtracts the group's
    mean, GRPO's among them, cancels it, and what trains is the share. Ours: answers that cannot be read are one answer for the entropy.

    Raises:
        ValueError: alpha below 0.
    """
    if alpha < 0:
        raise ValueError(f"ttrv: alpha is {alpha}; it must not be negative")
    answers = _answers(group)
    votes = [answer for answer, rollout in zip(answers, group.rollouts, strict=True) if rollout.on_policy]
    if all(answer is None for answer in votes):
        return [None] * len(answers)
    share, entropy = shares(votes)
    return [(0.0 if answer is None else share.get(answer, 0.0)) - alpha * entropy for answer in answers]


def pseudo_span(spans: Sequence[Span], gamma: float) -> tuple[Span, float]:
    """(mean of the spans, confidence): exp(-gamma * u) with u the population deviations of starts and ends, added."""
    n = len(spans)
    means = [math.fsum(span[side] for span in spans) / n for side in (0, 1)]
    spread = sum(math.sqrt(math.fsum((span[side] - means[side]) ** 2 for span in spans) / n) for side in (0, 1))
    return (means[0], means[1]), math.exp(-gamma * spread)


def _divided_out(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    """Pointed out: before an advantage that divides by the group's deviation, which cancels the confidence."""
    columns = [column for column in stage.rewards if column.weight != 0]
    left = " but for the balance of the columns" if len(columns) > 1 else ""
    for name in names(stage, "advantage") & set(advantages.names()):
        extra = advantages.get(name).extra
        if arguments.get("gamma", 1.0) != 0 and extra.get("scale") == "deviation" and "scale_over" not in extra:
            text = f"reward 'urpa' multiplies all answers of a group by one number, which advantage '{name}' divides out{left}"
            yield f"{text}; take an advantage without a deviation"


@reward("urpa", paper="arXiv:2508.06317", best=None, compares=True, no_truth=True, doubts=_divided_out)
def urpa(group: Group, ctx: RewardContext, *, gamma: float = 1.0) -> list[float | None]:
    """Overlap with the mean of the group's time spans, times exp(-gamma * their spread in seconds): in [0, 1].

    The confidence is the same for a whole group: use an advantage without a deviation, which would cancel it (`vlmrl check` says so).
    Beside it the paper has `format` with the same weight. Ours: gamma 1 per second (the paper's is not known; divide by the length of your
    videos); spans that do not end after they begin have no vote and earn 0; with fewer than two spans nobody is judged.

    Raises:
        ValueError: gamma below 0.
    """
    if gamma < 0:
        raise ValueError(f"urpa: gamma is {gamma}; it must not be negative")
    texts = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    read = [None if text is None else parse_time_span(text) for text in texts]
    spans = [span if span is not None and span[0] < span[1] else None for span in read]
    votes = [span for span, rollout in zip(spans, group.rollouts, strict=True) if span is not None and rollout.on_policy]
    if len(votes) < 2:
        return [None] * len(spans)
    label, confidence = pseudo_span(votes, gamma)
    return [0.0 if span is None else confidence * temporal_iou(span, label, sort_times=False) for span in spans]
