"""What a study says: `study.json`, `report.md`, and short lines in the terminal."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlmrl import __version__, fs
from vlmrl.evals.score.table import markdown
from vlmrl.extras.study.conduct import Conductor, Results
from vlmrl.extras.study.forecast import Forecast, seconds_text
from vlmrl.extras.study.judge import Finding, OfArms
from vlmrl.extras.study.measures import Measured, bands
from vlmrl.extras.study.plan import Run, unlike
from vlmrl.extras.study.runs import Failure
from vlmrl.extras.study.stats import OPEN, Estimate
from vlmrl.extras.study.tables import (
    arms_of,
    compared,
    condition_rows,
    effect_cells,
    measure_rows,
    number,
    power_cells,
    premise_rows,
    seed_rows,
    span,
    title,
)

VERDICTS = """* **holds**: the premises are met, and the whole interval of the effect is above 0
* **no effect above delta**: an effect of delta or more is excluded (one-sided)
* **cannot be told**: neither; the power says how likely that was
* **premise not met**: what the question presupposes is not so here, and nothing is concluded
"""
INTERVALS = "Effects are differences paired by seed, in the direction that is asked for; intervals are Student's t over the seeds."


def told(one: Finding, planned: int) -> str:
    """Write the verdict with what has to be said of it: more than the word, and that seeds of the plan are missing."""
    n = 0 if one.found is None else one.found.n
    notes = [one.remark] * bool(one.remark) + [f"preliminary, {n} of {planned} seeds"] * (n < planned)
    return f"{one.verdict} ({'; '.join(notes)})" if notes else one.verdict


class Report:
    """The results of a study in words and numbers."""

    def __init__(self, conductor: Conductor, failed: Sequence[Failure] = ()):
        """Judge what is there."""
        self.conductor, self.failed = conductor, failed
        self.study = conductor.study
        self.results: Results = conductor.results()
        self.forecasts: list[Forecast] = conductor.forecasts()

    @property
    def differs(self) -> dict[str, dict[str, Any]]:
        """Key -> arm -> value of what differs between the arms."""
        return unlike(self.conductor.recipes, list(self.study.arms))

    def state(self) -> str:
        """Say whether the verdicts stand."""
        left, look = self.results.left, self.results.look
        if not left:
            seeds = 0 if look is None else look.seeds
            return f"all runs are done: {seeds} of at most {len(self.study.seeds)} seeds" if self.study.looks else "all runs are done"
        names = ", ".join(run.name for run in left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
        if look is not None and self.study.looks is not None:
            return f"after {look.seeds} seeds it is not decided; the next look waits for {len(left)} runs: {names}"
        return f"the verdict waits for {len(left)} runs: {names}"

    # ---- terminal

    def lines(self) -> list[str]:
        """Write what the terminal shows."""
        out = [f"{self.study.name}: {self.state()}", *(f"failed: {one}" for one in self.failed)]
        for one in self.results.findings:
            comparison = one.comparison
            out += ["", f"{comparison.name}: {one.verdict}{f' ({one.remark})' if one.remark else ''}"]
            interval = "" if one.found is None else f"{number(one.found.mean, sign=True)} {span(one.found)}"
            out.append(
                f"  {title(comparison)}, {compared(comparison)}: {interval}, delta {comparison.delta:g}, {power_cells(one)[0]} seeds"
            )
            out.append(f"  by seed: {' '.join(f'{seed}: {number(value, sign=True)}' for seed, value in one.by_seed.items())}")
            if one.power is not None and one.power_null is not None:
                out.append(
                    f"  power with the deviation found: {one.power.holds:.2f} to hold at delta, "
                    f"{one.power_null.no_effect:.2f} to exclude it at 0"
                )
            for row in premise_rows(one)[1:]:
                out.append(f"  premise {row[0]} ({row[1]}): {row[3]}, wanted {row[2]}: {'met' if row[4] == 'yes' else 'not met'}")
            for row in condition_rows(one)[2:]:
                out.append(f"  also {row[0]}, {row[1]}: {row[2]} {row[3]}, p {row[5]} by Holm")
        return out

    # ---- report.md

    def document(self) -> str:
        """Write the report as Markdown."""
        study = self.study
        lines = [f"# {study.name}", "", f"{self.state()[0].upper()}{self.state()[1:]}.", ""]
        lines += [f"* failed: {one}" for one in self.failed] + [""] * bool(self.failed)
        if self.results.findings:
            lines += [markdown(overview_rows(self.results.findings))]
        for earlier in self.results.earlier:
            verdicts = ", ".join(f"{name}: {verdict}" for name, verdict in earlier["verdicts"].items())
            lines += [f"The look after {earlier['seeds']} seeds said {verdicts}.", ""]
        lines += [VERDICTS, f"{INTERVALS} {self._levels()}", ""]
        lines += ["## Power, said before the first run", "", *(f"* {one.line()}" for one in self.forecasts), ""]
        lines += ["## What differs between the arms", "", markdown(unlike_rows(self.differs, list(study.arms)))]
        for one in self.results.findings:
            lines += [f"## {one.comparison.name}", "", *section(one, self.results.values, len(study.seeds))]
            lines += [markdown(seed_rows(one, self.results.values))]
        return "\n".join([*lines, *self._provenance()])

    def _levels(self) -> str:
        look = self.results.look
        if look is None or self.study.looks is None:
            return "Over several comparisons nothing is corrected: each may be wrong by itself."
        return (
            f"Looks after {', '.join(map(str, self.study.looks_at))} seeds spend the error of 5% by {self.study.looks.spending}: at "
            f"this one the interval has {1 - look.level.interval:.2%}, and delta is excluded at {look.level.excluded:.3g}."
        )

    def _provenance(self) -> list[str]:
        costs = self.conductor.costs()
        took = seconds_text([(one["kind"], one["cpu"]) for one in costs])
        pair = ", ".join(self.study.pair)
        return [
            "## How it was measured",
            "",
            f"* recipe `{self.study.recipe}`; seeds {', '.join(map(str, self.study.seeds))}, which {pair} follow",
            f"* plan {self.conductor.digest[:16]}, in `plan.json`; vlmrl {__version__}",
            *([f"* processor seconds of a run, mean (number of runs): {took}"] if took else []),
            "",
        ]

    # ---- study.json

    def json(self) -> dict[str, Any]:
        """Collect everything, as JSON values."""
        results, study = self.results, self.study
        named = self.conductor.named()
        return {
            "name": study.name,
            "recipe": study.recipe,
            "plan": self.conductor.digest,
            "vlmrl": __version__,
            "decided": results.decided,
            "state": self.state(),
            "left": [run.name for run in results.left],
            "failed": [{"run": one.run.name, "code": one.code, "log": self._below(one.run.log)} for one in self.failed],
            "pair": list(study.pair),
            "seeds": list(study.seeds),
            "look": None if results.look is None else {"seeds": results.look.seeds, **asdict(results.look.level)},
            "looks": list(study.looks_at),
            "earlier": results.earlier,
            "arms": {arm: [self._below(run.folder) for run in self._runs(arm) if run.folder.exists()] for arm in study.arms},
            "differs": self.differs,
            "power": [asdict(one) for one in self.forecasts],
            "comparisons": {str(one.comparison.name): finding_json(one) for one in results.findings},
            "measured": {
                arm: {str(seed): {name: values[name] for name in named if name in values} for seed, values in of.items()}
                for arm, of in results.values.items()
            },
            "curves": curves(results.runs),
            "costs": self.conductor.costs(),
        }

    def _runs(self, arm: str) -> list[Run]:
        return [run for run in self.conductor.looks[-1].runs if run.arm == arm]

    def _below(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.conductor.out)).as_posix()

    def write(self) -> None:
        """Write `study.json` and `report.md`.

        Raises:
            StorageError: they cannot be written.
        """
        fs.mkdir(self.conductor.out)
        fs.write_text(self.conductor.out / "study.json", json.dumps(self.json(), indent=1, allow_nan=False) + "\n")
        fs.write_text(self.conductor.out / "report.md", self.document())


def overview_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """Make a row per comparison."""
    rows = [["comparison", "verdict", "effect", "interval", "delta", "seeds", "power at delta", "power to exclude delta"]]
    for one in findings:
        verdict = f"{one.verdict} ({one.remark})" if one.remark else one.verdict
        rows.append([str(one.comparison.name), verdict, *effect_cells(one.found), number(one.comparison.delta or 0.0), *power_cells(one)])
    return rows


def section(one: Finding, measured: OfArms, planned: int) -> list[str]:
    """Write the tables of one comparison."""
    lines = [f"**{told(one, planned)}.**", ""]
    lines += [markdown(premise_rows(one))] if one.premises else []
    lines += [markdown(condition_rows(one))]
    if one.p is not None and one.tost is not None:
        lines += [
            f"Primary: p = {one.p:.3g} of no effect, p = {one.tost:.3g} of the two one-sided tests against {one.comparison.delta:g}.",
            "",
        ]
    return [*lines, markdown(measure_rows(one.comparison, measured))]


def unlike_rows(differs: dict[str, dict[str, Any]], arms: Sequence[str]) -> list[list[str]]:
    """Make a row per key of a recipe that differs between arms."""
    rows = [["key", *arms]]
    return rows + [[key, *("-" if values[arm] is None else json.dumps(values[arm]) for arm in arms)] for key, values in differs.items()]


def curves(runs: dict[str, dict[int, Measured]]) -> dict[str, dict[str, Any]]:
    """Collect metric -> arm -> x, mean, low and high over seeds."""
    out: dict[str, dict[str, Any]] = {}
    for arm, of in runs.items():
        for metric, band in bands(list(of.values())).items():
            out.setdefault(metric, {})[arm] = band
    return out


def finding_json(one: Finding) -> dict[str, Any]:
    """Collect a judged comparison as JSON values."""
    comparison = one.comparison
    return {
        "verdict": one.verdict,
        "remark": one.remark,
        "arm": comparison.arm,
        "control": comparison.control,
        "premises": [
            {"text": p.premise.title, "value": p.value, "low": p.premise.low, "high": p.premise.high, "met": p.met} for p in one.premises
        ],
        "primary": {"text": title(comparison), "compared": compared(comparison), "measure": comparison.measure, "delta": comparison.delta}
        | estimate_json(one.found)
        | {"p": one.p, "tost": one.tost, "by_seed": {str(seed): value for seed, value in one.by_seed.items()}},
        "power": None if one.power is None else asdict(one.power),
        "power_without_effect": None if one.power_null is None else asdict(one.power_null),
        "secondary": [
            {"text": s.condition.title, "compared": compared(s.condition), "measure": s.condition.measure, "margin": s.condition.margin}
            | estimate_json(s.found)
            | {"p": s.p, "p_holm": s.p_holm, "shown": s.shown}
            for s in one.secondary
        ],
        "arms": arms_of(comparison),
        "open": one.verdict == OPEN,
    }


def estimate_json(found: Estimate | None) -> dict[str, Any]:
    """Collect an effect as JSON values."""
    if found is None:
        return {"effect": None, "low": None, "high": None, "sd": None, "seeds": 0}
    return {"effect": found.mean, "low": finite(found.low), "high": finite(found.high), "sd": finite(found.sd), "seeds": found.n}


def finite(value: float) -> float | None:
    """Keep a number as JSON has it."""
    return value if math.isfinite(value) else None
