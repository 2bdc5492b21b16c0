"""Strategies `spo_chain_proposed` and `rest_grpo_proposed`: answers that go on from the beginning of an earlier answer's thought.

    method               arXiv       goes on from                             what it is for
    spo_chain_proposed   2505.23564  every place at which a piece ends        the value of that place, for the reweight of this name
    rest_grpo_proposed   2508.19576  early places of the best answer          further questions, that train with the group

Both papers continue the token sequence itself. Ours: the beginning of the thought stands in the question, so the answers that go on train
(and are sampled) with it in their prompt; pieces are equal numbers of words (`rollout.pieces`), where SPO parts them at tokens that the
policy was unsure of and ReST-RL at lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from vlmrl.protocols import strategy
from vlmrl.rollout.pieces import beginning, cut_places
from vlmrl.rollout.strategy.hint import joined
from vlmrl.types import Group, HintRequest, HintRound

Rewards = Sequence[float | None]


def going_on(question: str, so_far: str) -> str:
    """The question with the beginning of a thought."""
    return f"{question}\nYou have thought so far:\n{so_far}\nGo on from there without repeating it, and answer."


class GoingOn:
    """What the methods share: one round of further answers, which join the group."""

    def sampled(self, rollouts: int) -> int:
        return rollouts

    def complete(self, group: Group, score: Callable[[Group], Rewards], tokenize: Callable[[str], Sequence[int]]) -> Group:
        return group

    def beginnings(self, group: Group, rewards: Rewards) -> list[tuple[int, str]]:
        """(tier, beginning of a thought) to go on from."""
        raise NotImplementedError

    def rows(self, group: Group) -> int:
        """Answers per beginning."""
        raise NotImplementedError

    def more(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound], *, step: int) -> list[HintRequest]:
        if rounds:
            return []
        question, rows = group.prompt.sample.question, self.rows(group)
        return [HintRequest(question=going_on(question, text), tier=tier, rows=rows) for tier, text in self.beginnings(group, rewards)]

    def merge(self, group: Group, rewards: Rewards, rounds: Sequence[HintRound]) -> Group:
        """The group's own rows, then those that go on, by tier."""
        return joined(group, rounds)


class Chain(GoingOn):
    """Answers from every place of every answer. The b-th place (from 1) of the c-th answer has tier c (pieces - 1) + b."""

    def __init__(self, pieces: int, continuations: int):
        self.pieces, self.continuations = pieces, continuations

    def beginnings(self, group: Group, rewards: Rewards) -> list[tuple[int, str]]:
        texts = [rollout.text for rollout in group.rollouts]
        cuts = [(c, b, place) for c, text in enumerate(texts) for b, place in enumerate(cut_places(text, self.pieces), 1)]
        return [(c * (self.pieces - 1) + b, beginning(texts[c], place)) for c, b, place in cuts]

    def rows(self, group: Group) -> int:
        return self.continuations


def spread(count: int, alpha: float, wanted: int) -> list[int]:
    """Up to `wanted` different places of `count`, at the middles of equal shares of the weights alpha^i: early ones are closer together."""
    total = [math.fsum(alpha**i for i in range(n + 1)) for n in range(count)]
    marks = [(n + 0.5) / wanted * total[-1] for n in range(wanted)] if count else []
    return sorted({next(i for i, sum_ in enumerate(total) if sum_ >= mark) for mark in marks})


class FromTheBest(GoingOn):
    """Answers from early places of the best answer, in groups whose rewards differ."""

    def __init__(self, *, pieces: int, beginnings: int, alpha: float, least_std: float, success_at: float):
        self.pieces, self.wanted, self.alpha = pieces, beginnings, alpha
        self.least_std, self.success_at = least_std, success_at

    def sampled(self, rollouts: int) -> int:
        return rollouts // 2

    def beginnings(self, group: Group, rewards: Rewards) -> list[tuple[int, str]]:
        judged = [reward for reward in rewards if reward is not None]
        if not judged or max(judged) < self.success_at:
            return []
        mean = math.fsum(judged) / len(judged)
        if math.sqrt(math.fsum((reward - mean) ** 2 for reward in judged) / len(judged)) < self.least_std:
            return []
        best = group.rollouts[rewards.index(max(judged))].text
        places = cut_places(best, self.pieces)
        return [(n, beginning(best, places[i])) for n, i in enumerate(spread(len(places), self.alpha, self.wanted), 1)]

    def rows(self, group: Group) -> int:
        return max(2, len(group.rollouts) // self.wanted)


@strategy("spo_chain_proposed", paper="arXiv:2505.23564")
def spo_chain_proposed(*, pieces: int = 4, continuations: int = 4) -> Chain:
    """Answers from several places of every answer's thought, which say what these places are worth; with the reweight of this name.

    `continuations` answers for each of the `pieces` - 1 places of each of the group's answers: they are as many rows more. The paper has
    nine.

    Raises:
        ValueError: fewer than two pieces, or no continuations.
    """
    if pieces < 2 or continuations < 1:
        raise ValueError(f"strategy 'spo_chain_proposed': needs pieces {pieces} >= 2 and continuations {continuations} >= 1")
    return Chain(pieces, continuations)


@strategy(
    "rest_grpo_proposed",
    paper="arXiv:2508.19576",
    min_generations=4,
    min_generations_why="of which half are answers and half go on from the best of them",
    wants={"advantage": ("grpo_by_question",)},
)
def rest_grpo_proposed(
    *, pieces: int = 8, beginnings: int = 2, alpha: float = 0.95, least_std: float = 0.05, success_at: float = 0.9
) -> FromTheBest:
    """Where the rewards differ and the best is good, answers that go on from beginnings of the best answer join the group.

    As in the code: `alpha`, by which earlier beginnings are likelier, `least_std` and `success_at`. Ours: within the step (the paper
    samples once per iteration), beginnings at fixed shares of these weights where the paper draws them, and their number. Filter
    `zero_variance` drops the groups that the paper leaves out. Not there: its value model and the decoding that goes by it.

    Raises:
        ValueError: fewer than two pieces, no beginnings, alpha outside (0, 1), or a negative deviation.
    """
    if pieces < 2 or beginnings < 1 or not 0 < alpha < 1 or least_std < 0:
        given = f"pieces {pieces} >= 2, beginnings {beginnings} >= 1, alpha {alpha} in (0, 1) and least_std {least_std} >= 0"
        raise ValueError(f"strategy 'rest_grpo_proposed': needs {given}")
    return FromTheBest(pieces=pieces, beginnings=beginnings, alpha=alpha, least_std=least_std, success_at=success_at)
