"""From measures of runs to verdicts of claims: premises, the one condition that decides, and the others with Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from benchmarks.claims.regimes import REGIMES
from benchmarks.claims.spec import Claim, Gate, Measures, Primary, Regime, Secondary
from benchmarks.claims.stats import ALPHA, Estimate, Power, Verdict, decide, estimate, p_above, power, remark, tost
from vlmrl.metrics.holm import holm

Measured = Mapping[str, Mapping[int, Measures]]
"""Arm -> seed -> measures, of one regime."""


@dataclass(frozen=True, kw_only=True)
class GateFinding:
    """A premise with what was measured."""

    gate: Gate
    value: float | None
    """Mean over seeds; None without numbers."""

    @property
    def met(self) -> bool:
        return self.value is not None and self.gate.low <= self.value <= self.gate.high


@dataclass(frozen=True, kw_only=True)
class SecondaryFinding:
    """A further condition with what was measured."""

    condition: Secondary
    found: Estimate | None
    p: float | None
    """One-sided, of an effect above -margin; None without numbers."""
    p_holm: float | None
    """After Holm's correction over the claim's further conditions that have numbers."""

    @property
    def shown(self) -> bool:
        return self.p_holm is not None and self.p_holm < ALPHA


@dataclass(frozen=True, kw_only=True)
class ClaimFinding:
    """A claim, judged."""

    claim: Claim
    gates: tuple[GateFinding, ...]
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
    secondary: tuple[SecondaryFinding, ...]


def resolution(regime: Regime, measure: str) -> float:
    """What one held-out answer changes in a measure; 0 for what is not a mean over held-out answers."""
    kind, _, of = measure.partition(" ")
    return 1 / regime.questions if kind in ("start", "end", "auc") and of != "tokens" else 0.0


def values_of(measured: Measured, arm: str, than: str | None, measure: str) -> dict[int, float]:
    """Seed -> measure of an arm, minus that of another one: seeds that one of them lacks are left out."""
    own = {seed: of[measure] for seed, of in measured.get(arm, {}).items() if measure in of}
    if than is None:
        return own
    other = {seed: of[measure] for seed, of in measured.get(than, {}).items() if measure in of}
    return {seed: own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())}


def effect_of(claim: Claim, condition: Primary | Secondary, measured: Measured) -> Estimate | None:
    """The effect of a condition in the direction that the claim says; None without numbers."""
    values = values_of(measured, condition.arm, condition.than, condition.measure)
    if not values:
        return None
    return estimate([condition.sign * value for value in values.values()], resolution(REGIMES[claim.regime], condition.measure))


def gate_of(gate: Gate, measured: Measured) -> GateFinding:
    values = values_of(measured, gate.arm, gate.than, gate.measure)
    return GateFinding(gate=gate, value=fmean(values.values()) if values else None)


def secondary_of(claim: Claim, measured: Measured) -> tuple[SecondaryFinding, ...]:
    """The further conditions, with Holm's correction over those that have numbers."""
    found = [effect_of(claim, condition, measured) for condition in claim.secondary]
    p = [None if one is None else p_above(one, -condition.margin) for one, condition in zip(found, claim.secondary, strict=True)]
    corrected = iter(holm([value for value in p if value is not None]))
    return tuple(
        SecondaryFinding(condition=condition, found=one, p=value, p_holm=None if value is None else next(corrected))
        for condition, one, value in zip(claim.secondary, found, p, strict=True)
    )


def judge(claim: Claim, measured: Measured) -> ClaimFinding:
    """The verdict of a claim. Where a premise or the effect has no numbers, nothing can be told."""
    gates = tuple(gate_of(gate, measured) for gate in claim.gates)
    found = effect_of(claim, claim.primary, measured)
    known = [gate for gate in gates if gate.value is not None]
    complete = len(known) == len(gates)
    verdict = decide(found if complete else None, claim.primary.delta, premise=all(gate.met for gate in known))
    powers = [None, None]
    if found is not None and found.n > 1 and found.sd > 0:
        powers = [power(effect, found.sd, found.n, claim.primary.delta) for effect in (claim.primary.delta, 0.0)]
    return ClaimFinding(
        claim=claim,
        gates=gates,
        found=found,
        p=None if found is None else p_above(found, 0.0),
        tost=None if found is None else tost(found, claim.primary.delta),
        power=powers[0],
        power_null=powers[1],
        verdict=verdict,
        remark=remark(found, claim.primary.delta) if found is not None and verdict == "no effect above delta" else "",
        secondary=secondary_of(claim, measured),
    )
