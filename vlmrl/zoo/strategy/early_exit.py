"""Strategy `s_grpo_proposed`: one thought, and answers to it that are asked for early. After S-GRPO, arXiv:2505.07686.

A group is one whole answer and, for m places within its thought, an answer that is given when thinking is ended there. The reward_shaping
of the same name lets right answers earn half as much the later they come, so a thought learns to end where it is enough.

Ours: the places part the words of the thought into m + 1 equal pieces (the paper draws them from the thought's length); the beginning of
the thought and the call to answer stand in the question, where the paper forces them within the answer, so an early answer trains with
them in its prompt; a thought of fewer words has fewer exits, and an answer without a thought has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlmrl.answers.tags import parse
from vlmrl.protocols import strategy
from vlmrl.rollout.strategy.hint import joined
from vlmrl.types import Group, HintRequest, HintRound

MOST = 20000
"""Characters of a thought that are shown, from its beginning."""
Rewards = Sequence[float | None]


def beginnings(thought: str, exits: int) -> list[str]:
    """The thought up to each of `exits` places, rising, each different and not empty; without the whole."""
    words = thought[:MOST].split()
    places = sorted({len(words) * n // (exits + 1) for n in range(1, exits + 1)} - {0, len(words)})
    return [" ".join(words[:place]) for place in places]


def exit_question(question: str, so_far: str) -> str:
    """The question with the beginning of a thought, and the call to answer."""
    return f"{question}\nYou have thought so far:\n{so_far}\nTime is up. Do not think any longer: give the answer now."


class EarlyExit:
    """See the module docstring."""

    def __init__(self, exits: int):
        self.exits = exits

    def sampled(self, rollouts: int) -> int:
        return 1

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        if rounds:
            return []
        thought = parse(group.rollouts[0].text, group.prompt.answer_format).thought or ""
        shown = beginnings(thought, self.exits)
        question = group.prompt.sample.question
        return [HintRequest(question=exit_question(question, text), tier=n, rows=1) for n, text in enumerate(shown, 1)]

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        """The early answers in the order of their places, behind the whole one."""
        return joined(group, rounds)


@strategy("s_grpo_proposed", paper="arXiv:2505.07686", wants={"advantage": ("dr_grpo",)})
def s_grpo_proposed(*, exits: int = 4) -> EarlyExit:
    """One answer, and `exits` answers that are asked for early within its thought; with reward_shaping `s_grpo_proposed`.

    Raises:
        ValueError: no exits.
    """
    if exits < 1:
        raise ValueError(f"strategy 's_grpo_proposed': exits is {exits}; it must be at least 1")
    return EarlyExit(exits)
