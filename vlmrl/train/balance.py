"""Which rank makes and trains on which prompts: equal work, not only equal numbers."""

from __future__ import annotations

from collections.abc import Sequence

from vlmrl.policy.pack import attention_pairs


def cost(prompt: int, answers: int, length: float, *, hidden: int) -> float:
    """Work of a group in token passes: tokens of its packed row, and attention pairs at what a pair costs next to a token.

    A layer's linear maps take about 24 hidden^2 operations per token and attention 4 hidden per pair, so a pair is 1 / (6 hidden) of
    a token.

    Args:
        prompt: prompt tokens.
        answers: answers of the group.
        length: expected tokens of an answer.
        hidden: size of the decoder's hidden state.
    """
    tokens = round(length)
    return prompt + answers * tokens + attention_pairs(prompt, [tokens] * answers) / (6 * hidden)


def deal(costs: Sequence[float], ranks: int) -> list[int]:
    """Rank of each place. Every rank gets the same number of places, or one less; the dearest first, each to the rank with the least
    work that still has room. Equal costs are dealt in turn."""
    room = [len(costs) // ranks + (rank < len(costs) % ranks) for rank in range(ranks)]
    load = [0.0] * ranks
    out = [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min((r for r in range(ranks) if room[r]), key=lambda r: (load[r], r))
        out[place] = rank
        load[rank] += costs[place]
        room[rank] -= 1
    return out
