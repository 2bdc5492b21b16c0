"""Mechanisms that claims speak of, computed for several methods on the same recorded groups: no noise of training lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, pstdev

import torch
from torch import Tensor

from benchmarks.claims.recorder import with_columns
from vlmrl.algo import registries
from vlmrl.algo.inputs import AdvantageInputs

Advantage = Callable[[AdvantageInputs], Tensor]
SMALL = 4
"""Rollouts that a small group trains on."""
LEAST_LIVE = 8
"""Advantages that are not 0, below which a step says nothing of the shape of their distribution."""


def bound(name: str, **arguments: object) -> Advantage:
    """A registered advantage with its arguments."""
    return registries.advantage.bind(name, arguments)


def groups_of(x: AdvantageInputs) -> Iterator[Tensor]:
    """The rows of each group, int64."""
    for one in sorted({int(g) for g in x.group_N}):
        yield (x.group_N == one).nonzero()[:, 0]


def live(adv_N: Tensor, x: AdvantageInputs) -> Tensor:
    """bool [N]: rows of groups in which some advantage is not 0. Rows of flat groups train nothing; counted, they would make every
    distribution look heavy in its tails as soon as most groups are solved."""
    out_N = torch.zeros_like(x.valid_N)
    for rows in groups_of(x):
        out_N[rows] = bool((adv_N[rows] != 0).any())
    return out_N & x.valid_N


def wasserstein_to_normal(values: Tensor) -> float:
    """2-Wasserstein distance of a sample to the standard normal law, by the quantiles of (i - 0.5) / n."""
    n = len(values)
    quantiles = torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n)  # pyright: ignore[reportUnknownMemberType]
    return float((values.double().sort().values - quantiles).pow(2).mean().sqrt())


def skewness(values: Tensor) -> float:
    """Third standardised moment; 0 where all values are equal."""
    centred = values - values.mean()
    spread = centred.pow(2).mean().sqrt()
    return float(centred.pow(3).mean() / spread.pow(3)) if float(spread) > 0 else 0.0


# ---- a ground-truth row in the group (TempSamp-R1) ---------------------------------------------------------------------


def shaped(x: AdvantageInputs, column: str) -> AdvantageInputs:
    """The groups with TempSamp-R1's non-linear shaping of a column."""
    shape = registries.reward_shaping.bind("tempsamp_nonlinear", {"reward": column})
    return with_columns(x, shape(x.rewards_NK, x.valid_N, x))


def pushed_down(adv_N: Tensor, x: AdvantageInputs) -> tuple[int, int]:
    """(sampled rows above the mean of their group's sampled rows that have a negative advantage, all such rows above the mean)."""
    down = above = 0
    for rows in groups_of(x):
        own = rows[x.on_policy_N[rows] & x.valid_N[rows]]
        if len(own) < 2 or len(own) == len(rows):
            continue
        better = own[x.reward_N[own] > x.reward_N[own].mean() + 1e-9]
        above += len(better)
        down += int((adv_N[better] < 0).sum())
    return down, above


def ground_truth_row(steps: Sequence[AdvantageInputs], column: str) -> dict[str, float]:
    """What the ground-truth row does to a group with and without shaping: shares of good sampled rows that are pushed down, and the mean
    over steps of the absolute skewness of live advantages. {} where no row was injected."""
    grpo = bound("grpo")
    counts = {"raw": [0, 0], "shaped": [0, 0]}
    skews: dict[str, list[float]] = {"raw": [], "shaped": []}
    for raw in steps:
        if bool(raw.on_policy_N.all()):
            continue
        # good rows are told by the reward itself in both cases: shaping keeps its order
        for name, seen in (("raw", raw), ("shaped", shaped(raw, column))):
            adv_N = grpo(seen)
            down, above = pushed_down(adv_N, raw)
            counts[name] = [counts[name][0] + down, counts[name][1] + above]
            values = adv_N[live(adv_N, raw)]
            if len(values) >= LEAST_LIVE:
                skews[name].append(abs(skewness(values)))
    if not counts["raw"][1] or not skews["raw"] or not skews["shaped"]:
        return {}
    out = {f"good rows pushed down, {name}": down / above for name, (down, above) in counts.items()}
    out |= {f"|skewness|, {name}": fmean(of) for name, of in skews.items()}
    out["good rows pushed down, raw - shaped"] = out["good rows pushed down, raw"] - out["good rows pushed down, shaped"]
    out["|skewness|, raw - shaped"] = out["|skewness|, raw"] - out["|skewness|, shaped"]
    return out


def sampled_rewards(steps: Sequence[AdvantageInputs], column: str, first: int = 3) -> dict[str, float]:
    """Mean of a column over the sampled rows of the first steps, and the share above 0.8."""
    k = steps[0].columns.index(column)
    values = torch.cat([x.rewards_NK[x.on_policy_N & x.valid_N, k] for x in steps[:first]])
    values = values[~values.isnan()]
    return {
        f"sampled {column}, first steps": float(values.mean()),
        f"sampled {column} > 0.8, first steps": float((values > 0.8).double().mean()),
    }


# ---- several tasks (G2RPO) ---------------------------------------------------------------------------------------------


def unevenness(adv_N: Tensor, x: AdvantageInputs) -> float | None:
    """Deviation over tasks of the mean |advantage| of live rows, over its mean: 0 where every task pulls alike. None for one task."""
    rows_N = live(adv_N, x)
    means = [float(adv_N[rows_N & (x.task_N == k)].abs().mean()) for k in range(len(x.tasks)) if bool((rows_N & (x.task_N == k)).any())]
    return pstdev(means) / fmean(means) if len(means) > 1 else None


def distance_to_normal(adv_N: Tensor, x: AdvantageInputs) -> float | None:
    """Mean over tasks of the distance of live advantages to the standard normal law; None where no task has enough of them."""
    rows_N = live(adv_N, x)
    parts = [adv_N[rows_N & (x.task_N == k)] for k in range(len(x.tasks))]
    found = [wasserstein_to_normal(part) for part in parts if len(part) >= LEAST_LIVE]
    return fmean(found) if found else None


def wrong_signs(adv_N: Tensor, x: AdvantageInputs) -> tuple[int, int]:
    """(rows above the mean of their group with a negative advantage, rows above the mean), over groups that are not flat."""
    down = above = 0
    for rows in groups_of(x):
        valid = rows[x.valid_N[rows]]
        if len(valid) < 2:
            continue
        better = valid[x.reward_N[valid] > x.reward_N[valid].mean() + 1e-9]
        above += len(better)
        down += int((adv_N[better] < 0).sum())
    return down, above


def several_tasks(steps: Sequence[AdvantageInputs]) -> dict[str, float]:
    """Evenness over tasks, distance to a normal law and wrong signs of GRPO's and G2RPO's advantages. {} for a single task."""
    methods = {"GRPO": bound("grpo"), "G2RPO": bound("g2rpo"), "G2RPO task": bound("g2rpo", stages="task")}
    out: dict[str, float] = {}
    for name, method in methods.items():
        advantages = [(method(x), x) for x in steps]
        uneven = [value for adv_N, x in advantages if (value := unevenness(adv_N, x)) is not None]
        far = [value for adv_N, x in advantages if (value := distance_to_normal(adv_N, x)) is not None]
        signs = [wrong_signs(adv_N, x) for adv_N, x in advantages]
        if not uneven or not far or not sum(above for _, above in signs):
            return {}
        out[f"unevenness over tasks, {name}"], out[f"distance to normal, {name}"] = fmean(uneven), fmean(far)
        out[f"good rows pushed down, {name}"] = sum(down for down, _ in signs) / sum(above for _, above in signs)
    for what in ("unevenness over tasks", "distance to normal"):
        out[f"{what}, GRPO - G2RPO"] = out[f"{what}, GRPO"] - out[f"{what}, G2RPO"]
    return out


def mixed_groups(steps: Sequence[AdvantageInputs]) -> float:
    """Share of groups whose valid rows do not all have the same reward."""
    grpo = bound("grpo")
    flags = [bool((adv_N[rows] != 0).any()) for x in steps for adv_N in (grpo(x),) for rows in groups_of(x)]
    return fmean(map(float, flags))


# ---- small groups (MC-GRPO) --------------------------------------------------------------------------------------------


def small_groups(steps: Sequence[AdvantageInputs]) -> dict[str, float]:
    """Shares of rows that a group of `SMALL` gives the other sign than the whole group does: with the mean, with the mean of one rollout
    more, and with the median of one rollout more (whose pivot does not train). {} where groups are too small to be cut into parts.

    The whole group's mean stands for the prompt's expected reward. Rows that it puts at 0, and rows with advantage 0, are not flipped.
    """
    from vlmrl.algo.advantage.mc_grpo import pivot

    grpo, mc = bound("grpo"), bound("mc_grpo")
    flips = {"mean": 0, "mean of one more": 0, "median": 0}
    counted = dict.fromkeys(flips, 0)
    for x in steps:
        for rows in groups_of(x):
            rows = rows[x.valid_N[rows]]
            if len(rows) < 2 * (SMALL + 1):
                continue
            truth_N = torch.zeros_like(x.reward_N)
            truth_N[rows] = x.reward_N[rows] - x.reward_N[rows].mean()
            borders = range(0, len(rows) + 1, SMALL + 1)
            for part in (rows[a:b] for a, b in pairwise(borders)):
                more, few = x.of_rows(part), x.of_rows(part[:SMALL])
                trained = ~pivot(more)
                for name, adv, mine in (
                    ("mean", grpo(few), part[:SMALL]),
                    ("mean of one more", grpo(more)[:SMALL], part[:SMALL]),
                    ("median", mc(more)[trained], part[trained]),
                ):
                    flips[name] += int(((adv * truth_N[mine] < 0) & (truth_N[mine].abs() > 1e-9)).sum())
                    counted[name] += len(mine)
    if not all(counted.values()):
        return {}
    out = {f"flipped signs, {name}": flips[name] / counted[name] for name in flips}
    out["flipped signs, mean - median"] = out["flipped signs, mean"] - out["flipped signs, median"]
    out["flipped signs, mean of one more - median"] = out["flipped signs, mean of one more"] - out["flipped signs, median"]
    return out
