"""Strategy `rltf_sd`: attempts get written feedback and are made again. RLTF-SD, arXiv:2602.02482.

Two turns. The group's own rows y0 are sampled from the question x0. A teacher writes feedback c0 on each, and from x1 = (x0, y0, c0) a
second answer y1 is sampled. The group is y0 and y1, and y1 trains under x0: the policy learns to answer at once as it would after the
feedback. Its ratio is taken to the policy under x0 before the step, so that it is 1 in the first update: the gradient is
A grad log pi(y1 | x0), without importance weights.

The teacher is the policy itself, which sees the reference solution (or the true answer) and must not give it away.
Ours: the wording; one draft of feedback per attempt, which is left out where it is cut off, has tags or gives the answer away; an attempt
without feedback has no second turn; a group without any trains as it was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vlmrl.protocols import strategy
from vlmrl.rollout.strategy.hint import clean_hint, reference_solution
from vlmrl.types import Group, Guidance, HintRequest, HintRound, Rollout, Sample

MOST = 4000
"""Characters of an attempt that are shown."""
Rewards = Sequence[float | None]


def teaching(sample: Sample, attempt: str) -> str:
    """What asks the policy for feedback on an attempt."""
    return (
        f"Question: {sample.question}\nReference solution: {reference_solution(sample) or sample.answer}\n"
        f"An attempt:\n{attempt.strip()[-MOST:]}\n"
        "Write short feedback for whoever made this attempt and has not seen the solution: what is right, what is wrong, what to "
        "look at again. Never state the answer, nor any coordinates or times of it. Give the feedback only."
    )


def with_feedback(question: str, attempt: str, feedback: str) -> str:
    """x1: the question with an attempt and the feedback on it."""
    shown = f"{question}\nAn earlier attempt:\n{attempt.strip()[-MOST:]}\nFeedback on it:\n{feedback}"
    return f"{shown}\nAnswer the question again."


class Feedback:
    """See the module docstring."""

    def sampled(self, rollouts: int) -> int:
        return rollouts // 2

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        """First the feedback on every attempt, then the second answers. The tier is the attempt's number, from 1."""
        sample = group.prompt.sample
        if not rounds:
            asks = enumerate((teaching(sample, rollout.text) for rollout in group.rollouts), 1)
            return [HintRequest(question=text, tier=tier, rows=1, writes=True) for tier, text in asks]
        if any(not one.request.writes for one in rounds):
            return []
        out: list[HintRequest] = []
        for one in rounds:
            written = next((text for r in one.rollouts if (text := clean_hint(r, sample)) is not None), None)
            if written is not None:
                attempt = group.rollouts[one.request.tier - 1].text
                out.append(HintRequest(question=with_feedback(sample.question, attempt, written), tier=one.request.tier, rows=1))
        return out

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        second = [_under_the_question(r) for one in rounds if not one.request.writes for r in one.rollouts]
        rows = (*group.rollouts, *second)
        return replace(group, rollouts=tuple(replace(r, k=k) for k, r in enumerate(rows))) if second else group


def _under_the_question(row: Rollout) -> Rollout:
    """The row, so that it trains under the plain question."""
    assert isinstance(row.guidance, Guidance)
    return replace(row, guidance=replace(row.guidance, train="plain", old="policy"))


@strategy(
    "rltf_sd",
    paper="arXiv:2602.02482",
    min_generations=4,
    min_generations_why="as half of the rows are attempts, and the others answers after feedback",
    injects_rows=True,
    wants={"advantage": ("rltf_sd",)},
)
def rltf_sd() -> Feedback:
    """RLTF-SD: attempts, and answers after feedback on them that train under the plain question; with advantage `rltf_sd`."""
    return Feedback()
