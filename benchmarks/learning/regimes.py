"""Where three methods pay and where they do not, in policies of a few numbers: `python -m benchmarks.learning.regimes`.

No language model is trained here. A policy has a logit or two, rewards are drawn from a law, advantages are the package's own, and the
update is that of REINFORCE with them. So it shows the mechanism and nothing else; runs of models stand beside it on the page.

* `curriculum`: a row of length n is right if all of its steps are; the chance of a step is shared by all lengths. Rows of all lengths from
  the first step on, against short ones first.
* `gate`: easy and hard questions may be answered with a thought or without. The gate's logit has a part that all questions share.
* `heavy`: eight arms of rising worth under noise with light or heavy tails, GRPO against G2RPO.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import torch
from torch import Tensor

from benchmarks.claims.mechanisms import Advantage, bound
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.extras.study.stats import estimate

GROUPS, GROUP = 16, 8
"""Prompts of a step, and answers to each."""
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
STEPS = 120
STARTS = (0.34, 0.1, 0.01, 0.001, 0.00001)
"""Chances of a row of full length at the start."""
EASY = ((1.0, 1.0), (0.95, 1.0), (0.85, 1.0))
"""Chances of a right answer to an easy question with a thought, and without."""
HARD = (0.9, 1 / 3)
SHARED = (0.0, 0.5, 0.9)
"""Parts of the gate that all questions share."""
TAILS: dict[str, Callable[[torch.Generator, int], Tensor]] = {
    "normal": lambda g, n: torch.randn(n, generator=g, dtype=torch.float64),
    "Student's t, 3": lambda g, n: _student(g, n, 3),
    "Cauchy": lambda g, n: _student(g, n, 1),
}


def _student(generator: torch.Generator, count: int, degrees: int) -> Tensor:
    normal = torch.randn(count, 1 + degrees, generator=generator, dtype=torch.float64)
    return normal[:, 0] / normal[:, 1:].pow(2).mean(1).sqrt()


def advantages(method: Advantage, reward_N: Tensor, group: int = GROUP) -> Tensor:
    """Give the method's advantages of groups of one task, [N], for rewards [N] that lie group after group."""
    n = len(reward_N)
    inputs = AdvantageInputs(
        reward_N=reward_N,
        rewards_NK=reward_N[:, None],
        valid_N=torch.ones(n, dtype=torch.bool),
        group_N=torch.arange(n) // group,
        task_N=torch.zeros(n, dtype=torch.int64),
        on_policy_N=torch.ones(n, dtype=torch.bool),
        length_N=torch.ones(n, dtype=torch.int64),
        columns=("reward",),
        tasks=("one",),
    )
    return method(inputs)


def curriculum(start: float, *, short_first: bool, seed: int, rate: float = 0.5) -> float:
    """Train the chance of a step, and average the chance of a row of full length over the training.

    Args:
        start: that chance before it.
        short_first: a third of the steps has lengths of at most two, another third of at most four.
    """
    generator, grpo = torch.Generator().manual_seed(seed), bound("grpo")
    chance = start ** (1 / LENGTHS[-1])
    logit, area = math.log(chance / (1 - chance)), 0.0
    for step in range(STEPS):
        most = LENGTHS[-1] if not short_first else (2, 4, LENGTHS[-1])[3 * step // STEPS]
        length_N = torch.randint(1, most + 1, (GROUPS,), generator=generator).repeat_interleave(GROUP)
        chance = 1 / (1 + math.exp(-logit))
        right_NT = torch.rand(GROUPS * GROUP, LENGTHS[-1], generator=generator) < chance
        taken_NT = torch.arange(LENGTHS[-1]) < length_N[:, None]
        adv_N = advantages(grpo, (right_NT | ~taken_NT).all(1).double())
        # mean over the tokens of a row, then over rows: what `seq_mean` does
        slope_N = ((right_NT.double() - chance) * taken_NT).sum(1) / length_N
        logit += rate * float((adv_N * slope_N).mean())
        area += (1 / (1 + math.exp(-logit))) ** LENGTHS[-1] / STEPS
    return area


def gate(easy: tuple[float, float], shared: float, *, seed: int, rate: float = 2.0) -> float:
    """Train when to think; give how much more often a thought is left out of easy questions than of hard ones at the end.

    Args:
        easy: chances of a right answer with a thought and without.
        shared: part of the logit that both kinds of questions share, in [0, 1].
    """
    generator, grpo = torch.Generator().manual_seed(seed), bound("grpo")
    right_KA = torch.tensor([[easy[1], easy[0]], [HARD[1], HARD[0]]])  # kind, thinks
    common, own_K = 0.0, torch.zeros(2, dtype=torch.float64)
    for _ in range(STEPS):
        kind_N = torch.randint(0, 2, (GROUPS,), generator=generator).repeat_interleave(GROUP)
        thinks_K = torch.sigmoid(shared * common + (1 - shared) * own_K)
        thinks_N = (torch.rand(GROUPS * GROUP, generator=generator) < thinks_K[kind_N]).long()
        right_N = torch.rand(GROUPS * GROUP, generator=generator) < right_KA[kind_N, thinks_N]
        slope_N = advantages(grpo, right_N.double()) * (thinks_N - thinks_K[kind_N]) / len(kind_N)
        common += rate * shared * float(slope_N.sum())
        own_K += rate * (1 - shared) * torch.stack([slope_N[kind_N == kind].sum() for kind in (0, 1)])
    thinks_K = torch.sigmoid(shared * common + (1 - shared) * own_K)
    return float(thinks_K[1] - thinks_K[0])


def heavy(tail: str, name: str, *, group: int, seed: int, rate: float = 0.5) -> float:
    """Train a policy over eight arms of worth 0 to 1; give the worth of its choice at the end.

    Args:
        tail: law of the noise on a reward, one of `TAILS`.
        name: advantage.
    """
    generator, method = torch.Generator().manual_seed(seed), bound(name)
    worth_A, logits_A = torch.linspace(0, 1, 8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    for _ in range(STEPS):
        chance_A = logits_A.softmax(0)
        arm_N = torch.multinomial(chance_A, GROUPS * group, replacement=True, generator=generator)
        adv_N = advantages(method, worth_A[arm_N] + 0.5 * TAILS[tail](generator, len(arm_N)), group)
        pushed_A = torch.zeros(8, dtype=torch.float64).index_add(0, arm_N, adv_N)
        logits_A += rate * (pushed_A - adv_N.sum() * chance_A) / len(arm_N)
    return float(logits_A.softmax(0) @ worth_A)


def cell(values: Sequence[float]) -> str:
    """Write a mean with Student's 95% interval."""
    found = estimate(list(values))
    return f"{fmean(values):+.3f} [{found.low:+.3f}, {found.high:+.3f}]" if stdev(values) else f"{fmean(values):+.3f}"


def tables(seeds: int) -> str:
    """Run all three and write their tables."""
    every = range(seeds)
    lines = ["| right at full length, at the start | short first - all lengths, mean over the training |", "| --- | --- |"]
    for start in STARTS:
        pairs = [curriculum(start, short_first=True, seed=s) - curriculum(start, short_first=False, seed=s) for s in every]
        lines.append(f"| {start:g} | {cell(pairs)} |")
    lines += ["", "| easy: right with a thought, without | part of the gate that is shared | skips, easy - hard |", "| --- | --- | --- |"]
    for easy in EASY:
        for shared in SHARED:
            lines.append(f"| {easy[0]:g}, {easy[1]:g} | {shared:g} | {cell([gate(easy, shared, seed=s) for s in every])} |")
    lines += ["", "| noise | answers in a group | worth of the choice, G2RPO - GRPO |", "| --- | --- | --- |"]
    for tail in TAILS:
        for group in (8, 16):
            pairs = [heavy(tail, "g2rpo", group=group, seed=s) - heavy(tail, "grpo", group=group, seed=s) for s in every]
            lines.append(f"| {tail} | {group} | {cell(pairs)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="regimes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    print(tables(parser.parse_args().seeds))


if __name__ == "__main__":
    main()
