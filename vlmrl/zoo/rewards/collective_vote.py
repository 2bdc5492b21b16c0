"""Reward `collective_vote`: agreement with what several models answer together. RLCCF, arXiv:2508.12338.

Every model answers n times. A model's ballots weigh SC, the share of its most common answer; the label is the answer with the most weight,
sum over models n of SC_n * count_n, and a rollout earns 1 where it is the label. One model of the collective is the policy, with the
group's own rollouts; the others are services (`endpoint`, and more in `peers`). The paper trains all of them, each on this reward: start
one run per model, each naming servers of the others' latest weights.

Ours: a peer is asked with the question and the pictures, and answers in a few words without our answer format; its n questions differ by
their seed; an answer that a peer does not give is no ballot, and without a ballot of any peer nobody is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlmrl.answers.tags import parse
from vlmrl.extras.judges.judges import JudgeQuestion
from vlmrl.extras.judges.material import pictures
from vlmrl.extras.judges.services import services
from vlmrl.extras.judges.verdicts import JudgeColumn, Problem, Tally
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group
from vlmrl.zoo.rewards.critiques import short_answer
from vlmrl.zoo.rewards.pseudo_label import vote


def plain(answer: str | None) -> str | None:
    """An answer without case and spacing; None for none."""
    return None if answer is None or not answer.strip() else " ".join(answer.casefold().split())


@reward("collective_vote", paper="arXiv:2508.12338", best=None, compares=True, no_truth=True, service=True)
def collective_vote(
    group: Group,
    ctx: RewardContext,
    *,
    endpoint: dict[str, Any],
    peers: list[dict[str, Any]] | None = None,
    answers: int = 4,
    with_pictures: bool = True,
) -> list[float | None]:
    """1 for the answer that the policy and its peers give together, weighted by how much each agrees with itself, else 0.

    Raises:
        RemoteError, ConfigError: a service stays down, or an endpoint is wrong.
        ValueError: fewer than one answer of a peer, or the prompt's pixels are not in `ctx.media`.
    """
    if answers < 1:
        raise ValueError(f"collective_vote: answers is {answers}; it must be at least 1")
    own = [plain(parse(rollout.text, group.prompt.answer_format).answer) for rollout in group.rollouts]
    seen = pictures(group, ctx) if with_pictures else ()
    asks = [
        JudgeQuestion(
            template="listener_peer",
            values={"question": group.prompt.sample.question},
            check=short_answer,
            pictures=seen,
            extra={"seed": n, "temperature": 1.0},
        )
        for n in range(answers)
    ]
    tally, ballots = Tally(), list[Sequence[str | None]]()
    for one in (endpoint, *(peers or ())):
        replies = services().chat(one).ask_all("collective_vote", asks)
        ballots.append([None if isinstance(reply, Problem) else plain(reply["answer"]) for reply in replies])
        for reply in replies:
            if isinstance(reply, Problem):
                tally.missing(reply)
    if all(ballot is None for of_peer in ballots for ballot in of_peer):
        return JudgeColumn([None] * len(own), tally.reasons)
    label = vote([[answer for answer, rollout in zip(own, group.rollouts, strict=True) if rollout.on_policy], *ballots])
    return [float(answer == label) for answer in own]
