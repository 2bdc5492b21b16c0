"""Sampler `vspo_proposed`: prompts by a value that mixes difficulty and uncertainty. After VSPO, arXiv:2512.07478.

The abstract: samples without advantage are replaced by prompts that are chosen by a metric of task value, which balances difficulty and
uncertainty. The replacing is the recipe's: filter `zero_variance` with `dynamic_sampling`, whose further batches this sampler plans.

Ours, as the metric could not be read: value = 4 p (1 - p) + kappa sqrt(p (1 - p) / (n + 1)), p and n the success and the number of answers
of the tracker of `prioritized`, drawn in proportion; kappa 0.5. Not there: the paper's clip of values and its progressive rewards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.prioritized import PrioritizedSampler
from vlmrl.sampling.vade import Signal

LEAST = 1e-6
"""Value of a prompt that is all but certain."""


def value(a: float, b: float, kappa: float) -> float:
    """4 p (1 - p) + kappa sqrt(p (1 - p) / (n + 1)) with p = a / n and n = a + b."""
    n = a + b
    spread = a * b / n**2
    return max(LEAST, 4 * spread + kappa * math.sqrt(spread / (n + 1)))


def _without_replacing(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if stage.dynamic_sampling.max_batches < 2:
        yield "sampler 'vspo_proposed' is to replace groups without signal; add filter 'zero_variance' and dynamic_sampling.max_batches"


@sampler("vspo_proposed", paper="arXiv:2512.07478", weighs_difficulty=True, doubts=_without_replacing)
def vspo_proposed(
    sample_ids: Sequence[str],
    seed: int,
    *,
    kappa: float = 0.5,
    half_life: float = 50.0,
    signal: Literal["passes", "reward"] = "passes",
) -> PromptSampler:
    """Prompts drawn by 4 p (1 - p) + kappa sqrt(p (1 - p) / (n + 1)).

    Raises:
        ValueError: a negative kappa, or what `prioritized` raises.
    """
    return ValueSampler(sample_ids, seed, kappa=kappa, half_life=half_life, signal=signal)


class ValueSampler(PrioritizedSampler):
    """`prioritized` with another weight; state and memory are its own."""

    def __init__(self, sample_ids: Sequence[str], seed: int, *, kappa: float, half_life: float, signal: Signal):
        if kappa < 0:
            raise ValueError(f"sampler 'vspo_proposed': kappa is {kappa}, must not be negative")
        self._kappa = kappa
        super().__init__(sample_ids, seed, g=0.0, eps=LEAST, half_life=half_life, signal=signal)

    def _worth(self, a: float, b: float) -> float:
        return value(a, b, self._kappa)
