"""From measures of runs to verdicts: premises, the one measure that decides, and further conditions with Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from vlmrl.extras.study.power import Power, power
from vlmrl.extras.study.spec import Comparison, Condition, Premise
from vlmrl.extras.study.stats import ALPHA, NO_EFFECT, ONCE, Estimate, Level, Verdict, decide, estimate, p_above, remark, tost
from vlmrl.metrics.holm import holm

Measures = Mapping[str, float]
OfArms = Mapping[str, Mapping[int, Measures]]
"""Arm -> seed -> measures."""
Resolution = Callable[[str], float]
"""What one held-out answer changes in a measure."""


@dataclass(frozen=True, kw_only=True)
class PremiseFinding:
    """A premise with what was measured."""

    premise: Premise
    value: float | None
    """Mean over seeds; None without numbers."""

    @property
    def met(self) -> bool:
        low, high = self.premise.low, self.premise.high
        return self.value is not None and (-math.inf if low is None else low) <= self.value <= (math.inf if high is None else high)


@dataclass(frozen=True, kw_only=True)
class ConditionFinding:
    """A further condition with what was measured."""

    condition: Condition
    found: Estimate | None
    p: float | None
    """One-sided, of an effect above -margin; None without numbers."""
    p_holm: float | None
    """After Holm's correction over the comparison's further conditions that have numbers."""

    @property
    def shown(self) -> bool:
        return self.p_holm is not None and self.p_holm < ALPHA


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A comparison, judged."""

    comparison: Comparison
    premises: tuple[PremiseFinding, ...]
    by_seed: Mapping[int, float]
    """Effect of each seed in the direction that is asked for."""
    found: Estimate | None
    p: float | None
    """One-sided, of an effect above 0."""
    tost: float | None
    power: Power | None
    """With the deviation that was found, were the effect delta."""
    power_null: Power | None
    """The same, were there no effect."""
    verdict: Verdict
    remark: str
    secondary: tuple[ConditionFinding, ...]


def values_of(measured: OfArms, arm: str, control: str | None, measure: str) -> dict[int, float]:
    """Take the measure of an arm by seed, minus that of another one: seeds that one of them lacks are left out."""
    own = {seed: of[measure] for seed, of in measured.get(arm, {}).items() if measure in of}
    if control is None:
        return own
    other = {seed: of[measure] for seed, of in measured.get(control, {}).items() if measure in of}
    return {seed: own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())}


def judge(comparison: Comparison, measured: OfArms, resolution: Resolution, level: Level = ONCE) -> Finding:
    """Judge a comparison that has everything filled in (`Study.questions`). Where a premise or the effect has no numbers, nothing can be
    told."""
    measure, delta = comparison.measure, comparison.delta
    if measure is None or delta is None:
        raise ValueError(f"comparison '{comparison.name}' has no measure or no delta")
    premises = tuple(_premise(one, measured) for one in comparison.premises)
    sign = -1 if comparison.direction == "lower" else 1
    by_seed = {seed: sign * value for seed, value in values_of(measured, comparison.arm, comparison.control, measure).items()}
    found = estimate(list(by_seed.values()), resolution(measure), level.interval) if by_seed else None
    known = [one for one in premises if one.value is not None]
    complete = len(known) == len(premises)
    verdict = decide(found if complete else None, delta, premise=all(one.met for one in known), level=level)
    powers: list[Power | None] = [None, None]
    if found is not None and found.n > 1 and found.sd > 0:
        powers = [power(effect, found.sd, found.n, delta) for effect in (delta, 0.0)]
    return Finding(
        comparison=comparison,
        premises=premises,
        by_seed=by_seed,
        found=found,
        p=None if found is None else p_above(found, 0.0),
        tost=None if found is None else tost(found, delta),
        power=powers[0],
        power_null=powers[1],
        verdict=verdict,
        remark=remark(found, delta) if found is not None and verdict == NO_EFFECT else "",
        secondary=_secondary(comparison, measured, resolution),
    )


def _premise(premise: Premise, measured: OfArms) -> PremiseFinding:
    values = values_of(measured, premise.arm, premise.control, premise.measure)
    return PremiseFinding(premise=premise, value=fmean(values.values()) if values else None)


def _secondary(comparison: Comparison, measured: OfArms, resolution: Resolution) -> tuple[ConditionFinding, ...]:
    found = [_effect(one, measured, resolution) for one in comparison.secondary]
    p = [None if one is None else p_above(one, -of.margin) for one, of in zip(found, comparison.secondary, strict=True)]
    corrected = iter(holm([value for value in p if value is not None]))
    return tuple(
        ConditionFinding(condition=of, found=one, p=value, p_holm=None if value is None else next(corrected))
        for of, one, value in zip(comparison.secondary, found, p, strict=True)
    )


def _effect(condition: Condition, measured: OfArms, resolution: Resolution) -> Estimate | None:
    values = values_of(measured, condition.arm, condition.control, condition.measure)
    return estimate([condition.sign * value for value in values.values()], resolution(condition.measure)) if values else None
