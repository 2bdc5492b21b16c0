"""The page and the file of results, and the tables of the plan."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from benchmarks.claims.judge import ClaimFinding, Measured, judge
from benchmarks.claims.regimes import REGIMES
from benchmarks.claims.spec import Claim, Gate, Primary, Regime, Secondary
from benchmarks.claims.stats import Estimate, estimate, power
from benchmarks.claims.table import CLAIMS
from benchmarks.common import machine, revision

QUICK = "**Only the machinery was tried: one seed and a few steps. This decides nothing.**"


Costs = Mapping[str, Mapping[str, Sequence[float]]]
"""Regime -> kind of run -> processor seconds of each."""


def judged(measured: Mapping[str, Measured]) -> list[ClaimFinding]:
    """Every claim whose deciding condition has runs. `measured`: regime -> arm -> seed -> measures."""
    return [
        judge(claim, measured[claim.regime])
        for claim in CLAIMS.values()
        if all(measured.get(claim.regime, {}).get(arm) for arm in (claim.primary.arm, claim.primary.than) if arm is not None)
    ]


def told(one: ClaimFinding) -> str:
    """The verdict with what has to be said of it: more than the word, and that seeds of the plan are missing."""
    planned, n = REGIMES[one.claim.regime].seeds, 0 if one.found is None else one.found.n
    notes = [one.remark] * bool(one.remark) + [f"preliminary, {n} of {planned} seeds"] * (n < planned)
    return f"{one.verdict} ({'; '.join(notes)})" if notes else one.verdict


# ---- the page ----------------------------------------------------------------------------------------------------------


def document(measured: Mapping[str, Measured], command: str, *, quick: bool, took: Costs | None = None) -> str:
    """The page as Markdown."""
    from vlmrl.evals.score.table import markdown

    findings = judged(measured)
    rows = [["claim", "verdict", "effect", "95% interval", "delta", "seeds", "power at delta", "power to exclude delta"]]
    for one in findings:
        link = f"[{one.claim.title}](#{anchor(one.claim.title)})"
        rows.append([link, told(one), *effect_cells(one.found), number(one.claim.primary.delta), *power_cells(one)])
    lines = [
        "# Claims of papers on generated worlds",
        "",
        *([QUICK, ""] if quick else []),
        "Each claim has one condition that decides it, a smallest effect of interest (delta) and premises, all fixed in",
        "[claims_plan.md](claims_plan.md) before the runs. A tiny model on generated pictures and videos shows whether a mechanism",
        "does what its paper says in a small and fully known case; it says nothing about models and benchmarks of real size.",
        "",
        "* **holds**: the premises are met, and the whole 95% interval of the effect is above 0",
        "* **no effect above delta**: an effect of delta or more is excluded (one-sided, 5%)",
        "* **cannot be told**: neither; the power says how likely that was",
        "* **premise not met**: what the paper presupposes is not so here, and nothing is concluded",
        "",
        "Effects are differences paired by seed (base model, order of rows and sampling follow the seed), in the direction that the claim",
        "says; intervals are Student's t over seeds. Power is simulated with the deviation that was found: the chance of `holds` were the",
        "effect delta, and of `no effect above delta` were there none.",
        "",
        markdown(rows),
    ]
    for one in findings:
        lines += _section(one, measured[one.claim.regime])
    return "\n".join([*lines, *_provenance(command, took or {})])


def pilot_page(measured: Mapping[str, Measured], took: Costs) -> str:
    """Premises and costs, and no effects: what a plan may be made from."""
    from vlmrl.evals.score.table import markdown

    lines = ["# Pilot: seeds that the plan does not have", ""]
    for claim in CLAIMS.values():
        gates = judge(claim, measured.get(claim.regime, {}))
        if any(finding.value is not None for finding in gates.gates):
            lines += [f"## {claim.title}", "", markdown(gate_cells(gates))]
    return "\n".join([*lines, f"Processor seconds of a run, mean (number of runs): {took_text(took)}", ""])


def anchor(title: str) -> str:
    """The anchor that Markdown makes of a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def _section(one: ClaimFinding, measured: Measured) -> list[str]:
    from vlmrl.evals.score.table import markdown

    claim, primary = one.claim, one.claim.primary
    lines = [f"## {claim.title}", "", f"{claim.paper}: {claim.says}", "", f"**Here: {told(one)}.**", ""]
    lines += [markdown(gate_cells(one)), markdown(condition_cells(one))]
    if one.p is not None and one.tost is not None:
        lines += [f"Primary: p = {one.p:.3g} of no effect, p = {one.tost:.3g} of the two one-sided tests against {primary.delta:g}.", ""]
    return [*lines, markdown(measure_cells(claim, measured))]


def gate_cells(one: ClaimFinding) -> list[list[str]]:
    """One row per premise."""
    rows = [["premise", "measured in", "wanted", "mean", "met"]]
    for finding in one.gates:
        gate = finding.gate
        where = gate.arm if gate.than is None else f"{gate.arm} - {gate.than}"
        value = "-" if finding.value is None else number(finding.value)
        rows.append([gate.text, where, bounds(gate), value, "-" if finding.value is None else "yes" if finding.met else "no"])
    return rows


def condition_cells(one: ClaimFinding) -> list[list[str]]:
    """The deciding condition, and then the others."""
    rows = [["condition", "compared", "effect", "95% interval", "seeds", "p (Holm)", "shown"]]
    primary = one.claim.primary
    rows.append([f"**{primary.text}**", compared(primary), *effect_cells(one.found), seeds(one.found), "", one.verdict])
    for other in one.secondary:
        text = other.condition.text + (f", not lower by {other.condition.margin:g}" if other.condition.margin else "")
        p = "-" if other.p_holm is None else f"{other.p_holm:.3g}"
        shown = "-" if other.found is None else "yes" if other.shown else "no"
        rows.append([text, compared(other.condition), *effect_cells(other.found), seeds(other.found), p, shown])
    return rows


def measure_cells(claim: Claim, measured: Measured) -> list[list[str]]:
    """One row per measure that a condition, a premise or the claim names; one column per arm: mean over seeds and interval."""
    arms = [arm for arm in claim.arms() if measured.get(arm)]
    named = [claim.primary.measure, *(s.measure for s in claim.secondary), *(g.measure for g in claim.gates), *claim.shown]
    rows = [["measure", *arms]]
    for name in dict.fromkeys(named):
        cells = [[of[name] for of in measured[arm].values() if name in of] for arm in arms]
        if any(cells):
            rows.append([name, *("-" if not values else _cell(estimate(values)) for values in cells)])
    return rows


def compared(condition: Primary | Secondary) -> str:
    """What is subtracted from what."""
    if condition.than is None:
        return condition.arm if condition.sign == 1 else f"-({condition.arm})"
    first, second = (condition.arm, condition.than) if condition.sign == 1 else (condition.than, condition.arm)
    return f"{first} - {second}"


def bounds(gate: Gate) -> str:
    """`at least a`, `at most b` or `a to b`."""
    if math.isfinite(gate.low) and math.isfinite(gate.high):
        return f"{gate.low:g} to {gate.high:g}"
    return f"at least {gate.low:g}" if math.isfinite(gate.low) else f"at most {gate.high:g}"


def effect_cells(found: Estimate | None) -> list[str]:
    return ["-", "-"] if found is None else [number(found.mean, sign=True), span(found)]


def seeds(found: Estimate | None) -> str:
    return "0" if found is None else str(found.n)


def power_cells(one: ClaimFinding) -> list[str]:
    """Seeds, chance of `holds` were the effect delta, chance of `no effect above delta` were there none."""
    if one.power is None or one.power_null is None:
        return [seeds(one.found), "-", "-"]
    return [seeds(one.found), f"{one.power.holds:.2f}", f"{one.power_null.no_effect:.2f}"]


def _cell(found: Estimate) -> str:
    return f"{number(found.mean)} {span(found)}"


def number(value: float, *, sign: bool = False) -> str:
    """Three decimals, or none for large counts."""
    text = "+" if sign else ""
    return f"{value:{text}.0f}" if abs(value) >= 100 else f"{value:{text}.3f}"


def span(found: Estimate) -> str:
    """An interval; nothing where one seed has none."""
    return f"[{number(found.low)}, {number(found.high)}]" if math.isfinite(found.low) else "(one seed)"


def took_text(took: Costs) -> str:
    """Mean processor seconds of each kind of run, with their numbers."""
    return "; ".join(
        f"{regime}: {', '.join(f'{kind} {fmean(seconds):.0f} ({len(seconds)})' for kind, seconds in kinds.items())}"
        for regime, kinds in took.items()
    )


def _provenance(command: str, took: Costs) -> list[str]:
    import torch
    import transformers

    shown = ", ".join(f"{key} {value}" for key, value in machine().items())
    return [
        "## How it was measured",
        "",
        f"* command (the last one; finished runs of earlier ones are kept): `{command}`",
        f"* machine: {shown}; each run has one thread",
        *([f"* processor seconds of a run, mean (number of runs): {took_text(took)}"] if took else []),
        f"* versions: Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}; "
        f"this repository at {revision()}",
        "* claims, premises and deltas: `benchmarks/claims/table.py`; worlds and arms: `benchmarks/claims/regimes.py`",
        "",
    ]


def summary_json(measured: Mapping[str, Measured], command: str, *, quick: bool, took: Costs | None = None) -> dict[str, Any]:
    """All numbers, with the same verdicts."""
    import torch
    import transformers

    return {
        "command": command,
        "quick": quick,
        "processor_seconds": {regime: {kind: list(of) for kind, of in kinds.items()} for regime, kinds in (took or {}).items()},
        "machine": machine() | {"threads": os.environ.get("OMP_NUM_THREADS", "")},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__},
        "revision": revision(),
        "claims": {one.claim.id: _claim_json(one) for one in judged(measured)},
        "measured": {
            regime: {arm: {str(seed): dict(of) for seed, of in seeds.items()} for arm, seeds in arms.items()}
            for regime, arms in measured.items()
        },
    }


def _claim_json(one: ClaimFinding) -> dict[str, Any]:
    primary = one.claim.primary
    return {
        "verdict": one.verdict,
        "remark": one.remark,
        "planned_seeds": REGIMES[one.claim.regime].seeds,
        "premises": [
            {"text": g.gate.text, "value": g.value, "low": finite(g.gate.low), "high": finite(g.gate.high), "met": g.met} for g in one.gates
        ],
        "primary": {"text": primary.text, "compared": compared(primary), "measure": primary.measure, "delta": primary.delta}
        | _estimate_json(one.found)
        | {"p": one.p, "tost": one.tost},
        "power": None if one.power is None else asdict(one.power),
        "power_without_effect": None if one.power_null is None else asdict(one.power_null),
        "secondary": [
            {"text": s.condition.text, "compared": compared(s.condition), "measure": s.condition.measure, "margin": s.condition.margin}
            | _estimate_json(s.found)
            | {"p": s.p, "p_holm": s.p_holm, "shown": s.shown}
            for s in one.secondary
        ],
    }


def _estimate_json(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {"effect": None, "low": None, "high": None, "sd": None, "seeds": 0}
    return {"effect": found.mean, "low": finite(found.low), "high": finite(found.high), "sd": finite(found.sd), "seeds": found.n}


def finite(value: float) -> float | None:
    """A number as JSON has it."""
    return value if math.isfinite(value) else None


# ---- the plan ----------------------------------------------------------------------------------------------------------


def plan_cells() -> list[list[str]]:
    """One row per claim: what decides it. The table of docs/benchmarks/claims_plan.md."""
    rows = [["claim", "paper", "regime", "primary condition", "compared", "measure", "delta", "seeds"]]
    for claim in CLAIMS.values():
        primary = claim.primary
        row = [claim.id, claim.paper, claim.regime, primary.text, compared(primary), primary.measure, f"{primary.delta:g}"]
        rows.append([*row, str(REGIMES[claim.regime].seeds)])
    return rows


def gate_plan_cells() -> list[list[str]]:
    """One row per premise."""
    rows = [["claim", "premise", "measured in", "measure", "wanted"]]
    for claim in CLAIMS.values():
        for gate in claim.gates:
            where = gate.arm if gate.than is None else f"{gate.arm} - {gate.than}"
            rows.append([claim.id, gate.text, where, gate.measure, bounds(gate)])
    return rows


def secondary_plan_cells() -> list[list[str]]:
    """One row per further condition."""
    rows = [["claim", "condition", "compared", "measure", "margin"]]
    for claim in CLAIMS.values():
        for one in claim.secondary:
            rows.append([claim.id, one.text, compared(one), one.measure, f"{one.margin:g}" if one.margin else "-"])
    return rows


def power_plan_cells() -> list[list[str]]:
    """One row per claim: what its seeds can decide, by simulation, with the planned deviation and with half of it."""
    rows = [
        [
            "claim",
            "delta",
            "seeds",
            "deviation planned with",
            "holds at delta",
            "holds at 2 delta",
            "excluded at 0",
            "with half the deviation",
        ]
    ]
    for claim in CLAIMS.values():
        primary, n = claim.primary, REGIMES[claim.regime].seeds
        sd = primary.spread.planned
        at = [power(effect, sd, n, primary.delta) for effect in (primary.delta, 2 * primary.delta, 0.0)]
        half = [power(effect, sd / 2, n, primary.delta) for effect in (primary.delta, 2 * primary.delta, 0.0)]
        found = [f"{at[0].holds:.2f}", f"{at[1].holds:.2f}", f"{at[2].no_effect:.2f}"]
        other = ", ".join([f"{half[0].holds:.2f}", f"{half[1].holds:.2f}", f"{half[2].no_effect:.2f}"])
        rows.append([claim.id, f"{primary.delta:g}", str(n), f"{sd:.3f}", *found, other])
    return rows


def cost_cells() -> list[list[str]]:
    """Runs and seconds of each regime."""
    rows = [["regime", "seeds", "bases", "fine-tuned", "arms", "seconds each", "minutes with two at a time"]]
    total = 0.0
    for regime in REGIMES.values():
        count, seconds = runs_of(regime), 0.0
        for kind, runs in count.items():
            seconds += runs * regime.seconds[kind]
        total += seconds
        each = ", ".join(f"{kind} {regime.seconds[kind]:g}" for kind in count if count[kind])
        rows.append([regime.name, str(regime.seeds), *(str(runs) for runs in count.values()), each, f"{seconds / 120:.0f}"])
    rows.append(["all", "", "", "", "", "", f"{total / 120:.0f}"])
    return rows


def runs_of(regime: Regime) -> dict[str, int]:
    """Number of runs of each kind that the claims need."""
    names = {name for claim in CLAIMS.values() if claim.regime == regime.name for name in claim.arms()}
    arms = [regime.arm(name) for name in names]
    most: dict[str, int] = {}
    for arm in arms:
        if arm.start is not None:
            most[arm.start] = max(most.get(arm.start, 0), arm.seeds or regime.seeds)
    return {"base": regime.seeds, "start": sum(most.values()), "arm": sum(arm.seeds or regime.seeds for arm in arms)}


def tables(parts: Sequence[list[list[str]]]) -> str:
    from vlmrl.evals.score.table import markdown

    return "\n".join(markdown(part) for part in parts)
