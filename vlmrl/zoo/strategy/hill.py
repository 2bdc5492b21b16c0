"""Strategy `hill_proposed`: where it failed, the policy writes hints, then answers under them; both train. HiLL, arXiv:2604.00698.

From a failed answer and the solution the policy writes hints. They are answers to a question of their own, of tier 1; the answers under
the n-th hint (n from 0) have tier n + 2, and there are as many as the group has rows. The reward_shaping of the same name gives a hint what
became of its answers. Advantage `grpo_by_question` compares hints with hints, and the answers under one hint with each other. All train
under the question that they were asked: on-policy.

With the authors' code: a hint that gives the answer away gets no answers. Ours: hinter and reasoner are one policy (the paper's hinter is a
second model); the answers to all hints train, not only those to the best; the words of the request. The hint stands between the answer
tags; without a readable hint the group trains as it was sampled, and so it does where its question is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vlmrl.answers.tags import parse
from vlmrl.protocols import strategy
from vlmrl.rollout.leak import leak
from vlmrl.rollout.strategy.hint import failed, hinted, reference_solution
from vlmrl.types import Group, HintRequest, HintRound, Rollout, Sample

MOST = 4000
"""Characters of a hint, and of an answer that is shown."""
HINTS, FIRST_ANSWERS = 1, 2
"""Tiers: of the hints, and of the answers under the first hint."""
Rewards = Sequence[float | None]


def asking_for_hint(sample: Sample, attempt: str) -> str:
    """What asks for a hint, with a failed answer and the solution in sight."""
    return (
        f"Question: {sample.question}\nReference solution: {reference_solution(sample) or sample.answer}\n"
        f"An answer that failed:\n{attempt.strip()[-MOST:]}\n"
        "Write a short hint that helps whoever failed, and would help with similar questions. Never state the answer, nor any coordinates "
        "or times of it. Give the hint as your answer."
    )


class Hinting:
    """Hints for questions at which everybody failed. `answers` 0: as many under a hint as the group has rows."""

    def __init__(self, *, hints: int, answers: int, success_at: float):
        self.hints, self.answers, self.success_at = hints, answers, success_at

    def sampled(self, rollouts: int) -> int:
        return rollouts

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        sample = group.prompt.sample
        if not rounds:
            if not failed(rewards, self.success_at):
                return []
            attempt = next(r for r, reward in zip(group.rollouts, rewards, strict=True) if reward is not None)
            return [HintRequest(question=asking_for_hint(sample, attempt.text), tier=HINTS, rows=self.hints)]
        if any(one.request.tier != HINTS for one in rounds):
            return []
        out: list[HintRequest] = []
        for n, rollout in enumerate(rounds[0].rollouts):
            hint = self._hint(rollout, group)
            if hint is not None and not leak(hint, sample):
                rows = self.answers or len(group.rollouts)
                out.append(HintRequest(question=hinted(sample.question, hint), tier=FIRST_ANSWERS + n, rows=rows))
        return out

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        """The hints, and the answers under them, in the order of the tiers; the group's own rows where there are no answers."""
        made = [r for one in sorted(rounds, key=lambda one: one.request.tier) for r in one.rollouts]
        if not any(r.guidance is not None and r.guidance.tier != HINTS for r in made):
            return group
        return replace(group, rollouts=tuple(replace(r, k=k) for k, r in enumerate(made)))

    def _hint(self, rollout: Rollout, group: Group) -> str | None:
        """The hint of a row, if it is complete and of sensible length."""
        hint = parse(rollout.text, group.prompt.answer_format).answer
        return hint if hint and rollout.finish == "stop" and len(hint) <= MOST else None


@strategy("hill_proposed", paper="arXiv:2604.00698", wants={"advantage": ("grpo_by_question",)})
def hill_proposed(*, hints: int = 4, answers: int = 0, success_at: float = 0.5) -> Hinting:
    """Failed groups become hints by the policy, and answers under each of them; with the reward_shaping of this name.

    Raises:
        ValueError: a single hint, which nothing is compared with, or a single answer.
    """
    if hints < 2 or answers == 1 or answers < 0:
        raise ValueError(f"strategy 'hill_proposed': needs hints {hints} >= 2 and answers {answers} of 0 or at least 2")
    return Hinting(hints=hints, answers=answers, success_at=success_at)
