"""The page and the file of results, made of the reports of a study, and the tables of the plan."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.claims.regimes import REGIMES
from benchmarks.claims.spec import Claim, Regime
from benchmarks.claims.table import CLAIMS
from benchmarks.common import how_measured, machine, revision
from vlmrl.extras.study.forecast import planned
from vlmrl.extras.study.judge import Finding, OfArms, judge
from vlmrl.extras.study.measures import resolution_of
from vlmrl.extras.study.power import power
from vlmrl.extras.study.report import VERDICTS, finding_json, section, told
from vlmrl.extras.study.tables import bounds, compared, effect_cells, number, power_cells, premise_rows

QUICK = "**Only the machinery was tried: one seed and a few steps. This decides nothing.**"
Costs = Mapping[str, Mapping[str, Sequence[float]]]
"""Regime -> kind of run -> processor seconds of each."""
Found = Sequence[tuple[Claim, Finding]]


def judged(measured: Mapping[str, OfArms]) -> list[tuple[Claim, Finding]]:
    """Every claim whose deciding condition has runs. `measured`: regime -> arm -> seed -> measures."""
    return [
        (claim, found_of(claim, measured[claim.regime]))
        for claim in CLAIMS.values()
        if all(measured.get(claim.regime, {}).get(arm) for arm in (claim.primary.arm, claim.primary.control) if arm is not None)
    ]


def found_of(claim: Claim, measured: OfArms) -> Finding:
    """A claim, judged as a question of a study."""
    return judge(claim.comparison, measured, resolution_of(REGIMES[claim.regime].questions))


# ---- the page ----------------------------------------------------------------------------------------------------------


def document(measured: Mapping[str, OfArms], command: str, *, quick: bool, took: Costs | None = None) -> str:
    """The page as Markdown."""
    from vlmrl.evals.score.table import markdown

    findings = judged(measured)
    rows = [["claim", "verdict", "effect", "95% interval", "delta", "seeds", "power at delta", "power to exclude delta"]]
    for claim, one in findings:
        link, verdict = f"[{claim.title}](#{anchor(claim.title)})", told(one, REGIMES[claim.regime].seeds)
        rows.append([link, verdict, *effect_cells(one.found), number(claim.primary.delta or 0.0), *power_cells(one)])
    lines = [
        "# Claims of papers on generated worlds",
        "",
        *([QUICK, ""] if quick else []),
        "Each claim has one condition that decides it, a smallest effect of interest (delta) and premises, all fixed in",
        "[claims_plan.md](claims_plan.md) before the runs. A tiny model on generated pictures and videos shows whether a mechanism",
        "does what its paper says in a small and fully known case; it says nothing about models and benchmarks of real size.",
        "",
        VERDICTS,
        "Effects are differences paired by seed (base model, order of rows and sampling follow the seed), in the direction that the claim",
        "says; intervals are Student's t over seeds. Power is simulated with the deviation that was found: the chance of `holds` were the",
        "effect delta, and of `no effect above delta` were there none.",
        "",
        markdown(rows),
    ]
    for claim, one in findings:
        lines += [f"## {claim.title}", "", f"{claim.paper}: {claim.says}", ""]
        lines += section(one, measured[claim.regime], REGIMES[claim.regime].seeds)
    return "\n".join([*lines, *_provenance(command, took or {})])


def pilot_page(measured: Mapping[str, OfArms], took: Costs) -> str:
    """Premises and costs, and no effects: what a plan may be made from."""
    from vlmrl.evals.score.table import markdown

    lines = ["# Pilot: seeds that the plan does not have", ""]
    for claim in CLAIMS.values():
        found = found_of(claim, measured.get(claim.regime, {}))
        if any(one.value is not None for one in found.premises):
            lines += [f"## {claim.title}", "", markdown(premise_rows(found))]
    return "\n".join([*lines, f"Processor seconds of a run, mean (number of runs): {took_text(took)}", ""])


def anchor(title: str) -> str:
    """The anchor that Markdown makes of a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def took_text(took: Costs) -> str:
    """Mean processor seconds of each kind of run, with their numbers."""
    return "; ".join(
        f"{regime}: {', '.join(f'{kind} {fmean(seconds):.0f} ({len(seconds)})' for kind, seconds in kinds.items())}"
        for regime, kinds in took.items()
    )


def _provenance(command: str, took: Costs) -> list[str]:
    return how_measured(
        command,
        "finished runs of earlier commands are kept",
        *([f"processor seconds of a run, mean (number of runs): {took_text(took)}"] if took else []),
        "claims, premises and deltas: `benchmarks/claims/table.py`; worlds and arms: `benchmarks/claims/regimes.py`",
        beside="; each run has one thread",
    )


def summary_json(measured: Mapping[str, OfArms], command: str, *, quick: bool, took: Costs | None = None) -> dict[str, Any]:
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
        "claims": {claim.id: finding_json(one) | {"planned_seeds": REGIMES[claim.regime].seeds} for claim, one in judged(measured)},
        "measured": {
            regime: {arm: {str(seed): dict(of) for seed, of in seeds.items()} for arm, seeds in arms.items()}
            for regime, arms in measured.items()
        },
    }


# ---- the plan ----------------------------------------------------------------------------------------------------------


def plan_cells() -> list[list[str]]:
    """One row per claim: what decides it. The table of docs/benchmarks/claims_plan.md."""
    rows = [["claim", "paper", "regime", "primary condition", "compared", "measure", "delta", "seeds"]]
    for claim in CLAIMS.values():
        primary = claim.primary
        row = [claim.id, claim.paper, claim.regime, primary.text, compared(primary), str(primary.measure), f"{primary.delta:g}"]
        rows.append([*row, str(REGIMES[claim.regime].seeds)])
    return rows


def premise_plan_cells() -> list[list[str]]:
    """One row per premise."""
    rows = [["claim", "premise", "measured in", "measure", "wanted"]]
    for claim in CLAIMS.values():
        for premise in claim.premises:
            where = premise.arm if premise.control is None else f"{premise.arm} - {premise.control}"
            rows.append([claim.id, premise.text, where, premise.measure, bounds(premise)])
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
        assert primary.spread is not None
        assert primary.delta is not None
        sd = planned(primary.spread)
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
