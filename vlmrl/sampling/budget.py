"""Rollout budgets: how many rollouts each planned prompt gets, when a step has a total to spend.

A budget takes the ledger rows of the planned prompts, in plan order, and the total, and returns one number per prompt that sum to the
total. Groups then have different sizes: statistics go by group id, and each prompt should keep its weight in the loss.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from vlmrl.protocols import budget
from vlmrl.sampling.ledger import LedgerRow


@budget("fixed")
def fixed(rows: Sequence[LedgerRow], total: int) -> list[int]:
    """The same for every prompt; what does not divide goes to the first ones, one each."""
    _check(len(rows), total, 0, total)
    each, rest = divmod(total, len(rows))
    return [each + (place < rest) for place in range(len(rows))]


def value(p: float, n: int) -> float:
    """Compute Knapsack RL's value of n rollouts at pass rate p: chance of a mixed group, 1 - p^n - (1 - p)^n, times p (1 - p)^2."""
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


def gain(p: float, n: int) -> float:
    """Compute `value(p, n + 1) - value(p, n)`, without cancellation: (p^n (1 - p) + (1 - p)^n p) p (1 - p)^2. Falls with n."""
    return (p**n * (1 - p) + (1 - p) ** n * p) * p * (1 - p) ** 2


@budget("knapsack", paper="arXiv:2509.25849")
def knapsack(rows: Sequence[LedgerRow], total: int, *, low: int = 2, high: int = 128, unseen: float = 0.5) -> list[int]:
    """More rollouts where one more is likelier to make a group mixed and is worth more: maximises the summed value.

    Value(p, N) = (1 - p^N - (1 - p)^N) * p (1 - p)^2 with `low` <= N <= `high`. Gains fall with N, so that giving each rollout to the
    prompt with the largest gain is optimal, as the paper's dynamic programme is. Solved prompts (p = 1) get `low`; what is left goes
    to those never solved (p = 0), to the solved ones last, evenly. Ours: p is the ledger's pass rate over all visits (the paper's:
    of the last epoch); a prompt without rewards counts as p = `unseen`; equal gains go to the earlier prompt.

    Raises:
        ValueError: the total does not lie between `low` and `high` per prompt, or an argument is out of range.
    """
    if low < 1 or high < low or not 0 <= unseen <= 1:
        raise ValueError(f"budget 'knapsack': needs 1 <= low {low} <= high {high} and unseen {unseen} in [0, 1]")
    _check(len(rows), total, low * len(rows), high * len(rows))
    rates = [unseen if row.pass_rate is None else row.pass_rate for row in rows]
    given = [low] * len(rows)
    left = total - sum(given)
    # heapq keeps the smallest on top, hence the sign; equal gains fall to the smaller place, the earlier prompt
    heap = [(-gain(p, low), place) for place, p in enumerate(rates) if 0 < p < 1 and low < high]
    heapq.heapify(heap)
    while left and heap:
        _, place = heapq.heappop(heap)
        given[place] += 1
        left -= 1
        if given[place] < high:
            heapq.heappush(heap, (-gain(rates[place], given[place]), place))
    # p of 0 or 1 has no gain at any n; the prompts that are never solved come first, each time the one with fewest rollouts
    for certain in (0.0, 1.0):
        spare = [(given[place], place) for place, p in enumerate(rates) if p == certain and low < high]
        while left and spare:
            _, place = heapq.heappop(spare)
            given[place] += 1
            left -= 1
            if given[place] < high:
                heapq.heappush(spare, (given[place], place))
    return given


@budget("sqrt_law", paper="arXiv:2601.19280")
def sqrt_law(rows: Sequence[LedgerRow], total: int, *, low: int = 2, high: int = 128, unseen: float = 0.5) -> list[int]:
    """As many rollouts as the deviation of a prompt's outcomes, sqrt(p (1 - p)): Rollout-GDRO's closed form.

    It minimises the summed variance of the prompts' means, sum p (1 - p) / n, with `low` <= n <= `high`. Gains fall with n, so that giving
    each rollout to the prompt with the largest gain is optimal in whole numbers. Ours: prompts instead of the paper's bins of pass rates,
    the ledger's pass rate, and equal gains to the prompt with fewer rollouts, then to the earlier one.

    Raises:
        ValueError: the total does not lie between `low` and `high` per prompt, or an argument is out of range.
    """
    if low < 1 or high < low or not 0 <= unseen <= 1:
        raise ValueError(f"budget 'sqrt_law': needs 1 <= low {low} <= high {high} and unseen {unseen} in [0, 1]")
    _check(len(rows), total, low * len(rows), high * len(rows))
    rates = [unseen if row.pass_rate is None else row.pass_rate for row in rows]
    given = [low] * len(rows)
    # one rollout more lowers p (1 - p) / n by p (1 - p) / (n (n + 1))
    heap = [(-p * (1 - p) / (low * (low + 1)), low, place) for place, p in enumerate(rates) if low < high]
    heapq.heapify(heap)
    for _ in range(total - sum(given)):
        _, n, place = heapq.heappop(heap)
        given[place] = n + 1
        if n + 1 < high:
            heapq.heappush(heap, (-rates[place] * (1 - rates[place]) / ((n + 1) * (n + 2)), n + 1, place))
    return given


def _check(prompts: int, total: int, least: int, most: int) -> None:
    if not prompts or not least <= total <= most:
        raise ValueError(
            f"budget: {total} rollouts for {prompts} prompts; between {least} and {most} are possible: change rollout.prompts_per_step, "
            "rollout.num_generations, or the budget's low and high"
        )
