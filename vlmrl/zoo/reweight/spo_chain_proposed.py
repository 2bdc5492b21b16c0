"""Segment Policy Optimization, chain: a piece of a thought earns how much it raised what the answer is worth. After arXiv:2505.23564, with
the authors' code.

    A(piece) = V(its end) - V(its beginning)

V of the prompt is the mean reward of the group's own answers, V of a place within a thought the mean reward of the answers that go on from
there (strategy `spo_chain_proposed`), V of the end the answer's own reward: along an answer the advantages sum to reward - V(prompt).
Tokens that the policy was sure of, of a probability above `sure`, get 0 (`sure: 1` trains all).

As in the code: the probability mask and 0.9. Ours: a place whose prompt could not be made has the value of the place before; what is behind
the thought belongs to its last piece; the answers that go on do not train. `pieces` is that of the strategy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight
from vlmrl.algo.rules import needs_strategy, strategy_of

PIECES = 4
NAME = "reweight 'spo_chain_proposed'"


def _without_its_strategy(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    yield from needs_strategy(NAME, "spo_chain_proposed")(arguments, stage)
    given = getattr(strategy_of(stage), "arguments", {})
    if given.get("pieces", PIECES) != arguments.get("pieces", PIECES):
        yield f"{NAME} and its strategy cut thoughts into different numbers of pieces; give both the same `pieces`"


def values(reward_N: Tensor, question_N: Tensor, judged_N: Tensor, own: int, number: int, pieces: int) -> list[float]:
    """V at the prompt, at each place of a group's `number`-th own answer, and at the end of it, `pieces` + 1 of them. `own` is its place;
    the tensors are those of its group's rows."""

    def mean(of_N: Tensor) -> float | None:
        counted_N = of_N & judged_N
        return float(reward_N[counted_N].mean()) if bool(counted_N.any()) else None

    out = [mean(question_N == 0) or 0.0]
    for place in range(1, pieces):
        found = mean(question_N == number * (pieces - 1) + place)
        out.append(out[-1] if found is None else found)
    return [*out, float(reward_N[own])]


@reweight(
    "spo_chain_proposed",
    paper="arXiv:2505.23564",
    needs=("question_N", "piece_NT", "logp_NT"),
    per="token",
    moves_signs=True,
    refuses=_without_its_strategy,
)
def spo_chain_proposed(x: AdvantageInputs, adv_NT: Tensor, *, pieces: int = PIECES, sure: float = 0.9) -> Tensor:
    """Advantages of the pieces of each answer, where the policy was not sure; 0 for answers that go on from another. [n, T]

    Raises:
        ValueError: fewer than two pieces, `sure` outside (0, 1], or what it needs is not there.
    """
    if pieces < 2 or not 0 < sure <= 1:
        raise ValueError(f"{NAME}: needs pieces {pieces} >= 2 and sure {sure} in (0, 1]")
    width = adv_NT.shape[1]
    question_N, piece_NT = need(x, "question_N", NAME), need(x, "piece_NT", NAME)[:, :width]
    out_NT = torch.zeros_like(adv_NT)
    for group in sorted({int(one) for one in x.group_N}):
        places = (x.group_N == group).nonzero()[:, 0]
        reward_G, question_G, judged_G = x.reward_N[places], question_N[places], x.valid_N[places]
        for number, own in enumerate(int(place) for place in (question_G == 0).nonzero()[:, 0]):
            if judged_G[own]:
                value = values(reward_G, question_G, judged_G, own, number, pieces)
                row, last = int(places[own]), int(piece_NT[places[own]].max())
                value = [*value[: last + 1], value[-1]]  # a short thought has fewer pieces
                gain = torch.tensor([end - start for start, end in itertools.pairwise(value)], dtype=adv_NT.dtype)
                out_NT[row] = gain[piece_NT[row]]
    if sure < 1:
        out_NT = torch.where(need(x, "logp_NT", NAME)[:, :width] > math.log(sure), torch.zeros_like(out_NT), out_NT)
    return out_NT
