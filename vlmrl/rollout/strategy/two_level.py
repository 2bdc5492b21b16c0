"""Strategies `hill_proposed`, `himac_proposed` and `advevo_proposed`: the policy writes a text, then answers with it in sight; both train.

    method            arXiv       the text                                             when              answers per text
    hill_proposed     2604.00698  a hint, from a failed answer and the solution        everybody failed  as many as the group
    himac_proposed    2603.00977  a plan, from the question alone                      always            `executions`
    advevo_proposed   2510.01586  a misleading remark, from the question and solution  always            `answers`

The texts are answers to a question of their own, of tier 1; the n-th text's answers (n from 0) have tier n + 2. The reward_shaping of the
same name gives a text what became of its answers. Advantage `grpo_by_question` compares texts with texts, and the answers to one text with
each other; `advevo_proposed` compares the answers to all texts. All train under the question that they were asked: on-policy.

HiLL: a hint that gives the answer away gets no answers. Ours: hinter and reasoner are one policy (the paper's hinter is a second model);
the answers to all hints train, not only those to the best; the words of the requests. HiMAC: macro plans and micro executions. Ours: a plan
is for one answer, where the paper plans attempts of many turns. AdvEvo-MARL: attackers and defenders. Ours: an attack is a remark that
misleads about a question, where the paper's are jailbreaks, and one policy has both roles, without a warm-up of the attacker. For all, the
text stands between the answer tags; without a readable text the group trains as it was sampled, and so it does where HiLL's question is
solved.
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
"""Characters of a text, and of an answer that is shown."""
TEXTS, FIRST_ANSWERS = 1, 2
"""Tiers: of the texts, and of the first text's answers."""
Rewards = Sequence[float | None]


def asking_for_hint(sample: Sample, attempt: str) -> str:
    """What asks for a hint, with a failed answer and the solution in sight."""
    return (
        f"Question: {sample.question}\nReference solution: {reference_solution(sample) or sample.answer}\n"
        f"An answer that failed:\n{attempt.strip()[-MOST:]}\n"
        "Write a short hint that helps whoever failed, and would help with similar questions. Never state the answer, nor any coordinates "
        "or times of it. Give the hint as your answer."
    )


def asking_for_plan(question: str) -> str:
    """What asks for a plan."""
    return f"Question: {question}\nDo not answer this question yet. As your answer give a plan: the steps that lead to its answer."


def with_plan(question: str, plan: str) -> str:
    """The question with a plan behind it."""
    return f"{question}\nFollow this plan:\n{plan}"


def asking_for_attack(sample: Sample) -> str:
    """What asks for a misleading remark."""
    return (
        f"Question: {sample.question}\nReference solution: {reference_solution(sample) or sample.answer}\n"
        "Write a short remark on this question that sounds sure and leads whoever answers it astray. Never state the true answer, nor any "
        "coordinates or times of it. Give the remark as your answer."
    )


def with_remark(question: str, remark: str) -> str:
    """The question with somebody's remark behind it."""
    return f"{question}\nSomebody remarks: {remark}"


class TwoLevel:
    """See the module docstring. `answers` 0: as many per text as the group has rows."""

    def __init__(self, texts: int, answers: int):
        self.texts, self.answers = texts, answers

    def sampled(self, rollouts: int) -> int:
        return rollouts

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def asking(self, group: Group, rewards: Rewards) -> str | None:
        """The question that asks for texts; None where none are wanted."""
        raise NotImplementedError

    def answering(self, sample: Sample, text: str) -> str | None:
        """The question with a text; None for a text that must not be used."""
        raise NotImplementedError

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        if not rounds:
            question = self.asking(group, rewards)
            return [] if question is None else [HintRequest(question=question, tier=TEXTS, rows=self.texts)]
        if any(one.request.tier != TEXTS for one in rounds):
            return []
        out: list[HintRequest] = []
        for n, rollout in enumerate(rounds[0].rollouts):
            text = self._text(rollout, group)
            question = None if text is None else self.answering(group.prompt.sample, text)
            if question is not None:
                out.append(HintRequest(question=question, tier=FIRST_ANSWERS + n, rows=self.answers or len(group.rollouts)))
        return out

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        """The texts, and the answers to them, in the order of the tiers; the group's own rows where there are no answers."""
        made = [r for one in sorted(rounds, key=lambda one: one.request.tier) for r in one.rollouts]
        if not any(r.guidance is not None and r.guidance.tier != TEXTS for r in made):
            return group
        return replace(group, rollouts=tuple(replace(r, k=k) for k, r in enumerate(made)))

    def _text(self, rollout: Rollout, group: Group) -> str | None:
        """The text of a row, if it is complete and of sensible length."""
        text = parse(rollout.text, group.prompt.answer_format).answer
        return text if text and rollout.finish == "stop" and len(text) <= MOST else None


class Hinting(TwoLevel):
    """Hints for questions at which everybody failed."""

    def __init__(self, *, hints: int, answers: int, success_at: float):
        super().__init__(hints, answers)
        self.success_at = success_at

    def asking(self, group: Group, rewards: Rewards) -> str | None:
        if not failed(rewards, self.success_at):
            return None
        attempt = next(r for r, reward in zip(group.rollouts, rewards, strict=True) if reward is not None)
        return asking_for_hint(group.prompt.sample, attempt.text)

    def answering(self, sample: Sample, text: str) -> str | None:
        return None if leak(text, sample) else hinted(sample.question, text)


class Planning(TwoLevel):
    """Plans for every question; one answer without a plan, which the ledger learns from."""

    def sampled(self, rollouts: int) -> int:
        return 1

    def asking(self, group: Group, rewards: Rewards) -> str | None:
        return asking_for_plan(group.prompt.sample.question)

    def answering(self, sample: Sample, text: str) -> str | None:
        return with_plan(sample.question, text)


class Attacking(TwoLevel):
    """Misleading remarks on every question; one answer without a remark, which the ledger learns from."""

    def sampled(self, rollouts: int) -> int:
        return 1

    def asking(self, group: Group, rewards: Rewards) -> str | None:
        return asking_for_attack(group.prompt.sample)

    def answering(self, sample: Sample, text: str) -> str | None:
        return None if leak(text, sample) else with_remark(sample.question, text)


@strategy("hill_proposed", paper="arXiv:2604.00698", wants={"advantage": ("grpo_by_question",)})
def hill_proposed(*, hints: int = 4, answers: int = 0, success_at: float = 0.5) -> Hinting:
    """Failed groups become hints by the policy, and answers under each of them; with the reward_shaping of this name.

    Raises:
        ValueError: a single hint, which nothing is compared with, or a single answer.
    """
    if hints < 2 or answers == 1 or answers < 0:
        raise ValueError(f"strategy 'hill_proposed': needs hints {hints} >= 2 and answers {answers} of 0 or at least 2")
    return Hinting(hints=hints, answers=answers, success_at=success_at)


@strategy("himac_proposed", paper="arXiv:2603.00977", wants={"advantage": ("grpo_by_question",)})
def himac_proposed(*, plans: int = 4, executions: int = 4) -> Planning:
    """Groups are plans by the policy, and answers that follow each of them; with reward_shaping and reweight of this name.

    Raises:
        ValueError: a single plan, which nothing is compared with, or a single execution.
    """
    if plans < 2 or executions < 2:
        raise ValueError(f"strategy 'himac_proposed': needs plans {plans} >= 2 and executions {executions} >= 2")
    return Planning(plans, executions)


@strategy("advevo_proposed", paper="arXiv:2510.01586", wants={"advantage": ("advevo_proposed",)})
def advevo_proposed(*, attacks: int = 4, answers: int = 4) -> Attacking:
    """Groups are misleading remarks by the policy, and answers in spite of each; with reward_shaping and advantage of this name.

    Raises:
        ValueError: a single attack, which nothing is compared with, or no answers to it.
    """
    if attacks < 2 or answers < 1:
        raise ValueError(f"strategy 'advevo_proposed': needs attacks {attacks} >= 2 and answers {answers} >= 1")
    return Attacking(attacks, answers)
