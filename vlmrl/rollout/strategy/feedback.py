"""Strategies `rltf_sd`, `taught_proposed`, `ilf_proposed`, `thinktuning_proposed`, `fission_proposed`: attempts get written feedback and
are made again.

Two turns. The group's own rows y0 are sampled from the question x0. A teacher writes feedback c0 on them, and from x1 = (x0, y0, c0)
second answers y1 are sampled, one per attempt unless said. The teacher is the policy itself; for all but ThinkTuning it sees the reference
solution (or the true answer) and must not give it away. The methods differ in which attempts go on, and in what trains under what:

    method                  arXiv        attempts  group                                    y1 trains under
    rltf_sd                 2602.02482   all       y0 and y1                                x0
    taught_proposed         2602.16066   all       y0 and y1                                x1
    ilf_proposed            2303.16755   all       y0 and the y1 with the highest reward    x0
    thinktuning_proposed    2508.07616   a share   y1 in the place of its y0                x0
    fission_proposed        2601.15625   failures  y0 and several y1 of each failure        x1

What trains under x0 learns to answer at once as it would after the feedback; its ratio is taken to the policy under x0 before the step, so
that it is 1 in the first update: the gradient is A grad log pi(y1 | x0), without importance weights.
Ours, for all: the wording; one draft of feedback per attempt, which is left out where it is cut off, has tags or gives the answer away;
an attempt without feedback has no second turn; a group without any trains as it was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from vlmrl.protocols import strategy
from vlmrl.rollout.strategy.hint import clean_hint, reference_solution
from vlmrl.types import Group, Guidance, HintRequest, HintRound, Rollout, Sample, TrainedUnder

MOST = 4000
"""Characters of an attempt that are shown."""
Keep = Literal["both", "best", "in_place"]
Rewards = Sequence[float | None]


def teaching(sample: Sample, attempt: str, *, informed: bool) -> str:
    """What asks the policy for feedback on an attempt."""
    known = f"Reference solution: {reference_solution(sample) or sample.answer}\n" if informed else ""
    return (
        f"Question: {sample.question}\n{known}An attempt:\n{attempt.strip()[-MOST:]}\n"
        "Write short feedback for whoever made this attempt and has not seen the solution: what is right, what is wrong, what to "
        "look at again. Never state the answer, nor any coordinates or times of it. Give the feedback only."
    )


def with_feedback(question: str, attempt: str, feedback: str) -> str:
    """x1: the question with an attempt and the feedback on it."""
    shown = f"{question}\nAn earlier attempt:\n{attempt.strip()[-MOST:]}\nFeedback on it:\n{feedback}"
    return f"{shown}\nAnswer the question again."


class Feedback:
    """See the module docstring."""

    def __init__(self, *, keep: Keep, train: TrainedUnder, informed: bool, share: float = 1.0):
        self.keep: Keep = keep
        self.train: TrainedUnder = train
        self.informed, self.share = informed, share

    def chosen(self, group: Group, rewards: Rewards) -> list[int]:
        """Places of the attempts that go on."""
        return list(range(max(1, int(self.share * len(group.rollouts)))))

    def rows(self, group: Group) -> int:
        """Second answers per attempt."""
        return 1

    def sampled(self, rollouts: int) -> int:
        return rollouts if self.keep == "in_place" else rollouts // 2

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        """First the feedback on every attempt that goes on, then the second answers. The tier is the attempt's number, from 1."""
        sample = group.prompt.sample
        if not rounds:
            asks = {n + 1: teaching(sample, group.rollouts[n].text, informed=self.informed) for n in self.chosen(group, rewards)}
            return [HintRequest(question=text, tier=tier, rows=1, writes=True) for tier, text in asks.items()]
        if any(not one.request.writes for one in rounds):
            return []
        out: list[HintRequest] = []
        for one in rounds:
            written = next((text for r in one.rollouts if (text := clean_hint(r, sample)) is not None), None)
            if written is not None:
                attempt = group.rollouts[one.request.tier - 1].text
                question = with_feedback(sample.question, attempt, written)
                out.append(HintRequest(question=question, tier=one.request.tier, rows=self.rows(group)))
        return out

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        made = [(r, reward) for one in rounds if not one.request.writes for r, reward in zip(one.rollouts, one.rewards, strict=True)]
        second = [(self._trained(r), reward) for r, reward in made]
        if self.keep == "best":
            judged = [(-reward, len(r.ids), n) for n, (r, reward) in enumerate(second) if reward is not None]
            second = [second[min(judged)[2]]] if judged else []
        if not second:
            return group
        rows = list(group.rollouts)
        for row, _ in second:
            if self.keep == "in_place":
                rows[_attempt(row)] = row
            else:
                rows.append(row)
        return replace(group, rollouts=tuple(replace(r, k=k) for k, r in enumerate(rows)))

    def _trained(self, row: Rollout) -> Rollout:
        assert isinstance(row.guidance, Guidance)
        return replace(row, guidance=replace(row.guidance, train=self.train, old="policy"))


class Fission(Feedback):
    """Feedback on failures alone, with several answers to each."""

    def __init__(self, *, most: int, recoveries: int, success_at: float):
        super().__init__(keep="both", train="guided", informed=True)
        self.most, self.recoveries, self.success_at = most, recoveries, success_at

    def sampled(self, rollouts: int) -> int:
        return rollouts

    def chosen(self, group: Group, rewards: Rewards) -> list[int]:
        return [n for n, reward in enumerate(rewards) if reward is not None and reward < self.success_at][: self.most]

    def rows(self, group: Group) -> int:
        return self.recoveries or max(2, len(group.rollouts) // 2)


def _attempt(row: Rollout) -> int:
    """Place of the attempt that a second answer came of."""
    assert row.guidance is not None
    return row.guidance.tier - 1


TWICE = "as half of the rows are attempts, and the others answers after feedback"


@strategy(
    "rltf_sd", paper="arXiv:2602.02482", min_generations=4, min_generations_why=TWICE, injects_rows=True, wants={"advantage": ("rltf_sd",)}
)
def rltf_sd() -> Feedback:
    """RLTF-SD: attempts, and answers after feedback on them that train under the plain question; with advantage `rltf_sd`."""
    return Feedback(keep="both", train="plain", informed=True)


@strategy("taught_proposed", paper="arXiv:2602.16066", min_generations=4, min_generations_why=TWICE)
def taught_proposed() -> Feedback:
    """Attempts, and answers after a teacher's feedback that train with it in their prompt: learning to use feedback.

    The teacher knows the solution. Ours: one turn of feedback (the paper has several), and both turns train on rewards of their own;
    advantage `grpo_by_question` or `rltf_sd`. Not there: learning to foretell the teacher's words.
    """
    return Feedback(keep="both", train="guided", informed=True)


@strategy("ilf_proposed", paper="arXiv:2303.16755", min_generations=4, min_generations_why=TWICE, injects_rows=True)
def ilf_proposed() -> Feedback:
    """Imitation learning from language feedback: the best answer after feedback joins the attempts, as an answer to the plain question.

    The paper has feedback by people and fine-tunes on the refinement that a model finds to follow it best. Here the rewards choose, and
    the imitation is `auxiliary_losses: [{name: expo}]`, which raises the likelihood of injected rows.
    """
    return Feedback(keep="best", train="plain", informed=True)


@strategy("thinktuning_proposed", paper="arXiv:2508.07616", injects_rows=True)
def thinktuning_proposed(*, share: float = 0.25, train: TrainedUnder = "plain") -> Feedback:
    """A share of the attempts gives way to what the policy answers after a teacher of its own size has commented on them.

    The teacher is the policy, and knows no more than it. The paper's share and prompts are not known; ours are a quarter, and that the
    comment does not train.

    Raises:
        ValueError: a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"strategy 'thinktuning_proposed': share is {share}; it must be above 0 and at most 1")
    return Feedback(keep="in_place", train=train, informed=False, share=share)


@strategy("fission_proposed", paper="arXiv:2601.15625", wants={"advantage": ("grpo_by_question",)})
def fission_proposed(*, most: int = 2, recoveries: int = 0, success_at: float = 0.5) -> Fission:
    """Fission-GRPO ("Robust Tool Use via Fission-GRPO"): failures get a diagnosis, and recoveries from them are sampled and trained.

    Each of at most `most` failed attempts becomes a question of its own, with as many answers as half of the group (or `recoveries`), that
    are compared with each other alone: advantage `grpo_by_question`. Ours: those numbers; the failed attempt stands in the prompt as a
    whole, where the paper goes on from the place of the error; the policy, with the solution in sight, is the paper's simulator of errors.

    Raises:
        ValueError: no attempts, or a single recovery, which nothing is compared with.
    """
    if most < 1 or recoveries == 1 or recoveries < 0:
        raise ValueError(f"strategy 'fission_proposed': needs most {most} >= 1 and recoveries {recoveries} of 0 or at least 2")
    return Fission(most=most, recoveries=recoveries, success_at=success_at)
