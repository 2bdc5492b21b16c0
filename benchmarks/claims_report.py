"""The page and the file of results: per claim what the paper says, what was measured, and a plain verdict."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.claims_cells import CLAIMS, Claim, Measures
from benchmarks.claims_stats import HOLDS, Finding, find, finite, interval, verdict
from benchmarks.common import machine, revision

Results = Mapping[str, Mapping[str, Any]]
"""Claim -> `measured` (arm -> seed -> measures), `before` (seed -> measures of the start), `constant` (task -> answer, score)."""


def document(results: Results, command: str, seeds: Sequence[int]) -> str:
    """The page as Markdown."""
    from vlmrl.evals.score.table import markdown

    judged = {name: find(CLAIMS[name], result["measured"]) for name, result in results.items()}
    overview = [["claim", "verdict", "seeds"]]
    for name, findings in judged.items():
        counts = {finding.seeds for finding in findings}
        overview.append([f"[{CLAIMS[name].title}](#{anchor(CLAIMS[name].title)})", verdict(findings), str(min(counts, default=0))])
    lines = [
        "# Claims of papers on the toy world",
        "",
        "Each method against plain GRPO and its other comparators: the same start, the same rows, the same number of rollouts, one tiny",
        "model on generated pictures or videos with exact ground truth. This says whether a mechanism does what its paper says in a small",
        "and fully known case; it does not reproduce the papers' numbers, and a verdict here is none about models of real size.",
        "",
        "Numbers are of greedy answers to held-out questions, mean over seeds. Intervals are 95% Student t intervals over seeds;",
        "differences are paired by seed. A condition is decided only by an interval that lies wholly on one side; a claim holds if all of",
        "its conditions do, and does not if one of them is refuted.",
        "",
        markdown(overview),
    ]
    for name, findings in judged.items():
        lines += _section(CLAIMS[name], results[name], findings)
    return "\n".join([*lines, *_provenance(command, seeds)])


def anchor(title: str) -> str:
    """The anchor that Markdown makes of a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def _section(claim: Claim, result: Mapping[str, Any], findings: Sequence[Finding]) -> list[str]:
    from vlmrl.evals.score.table import markdown

    lines = [f"## {claim.title}", "", f"{claim.paper}: {claim.says}", "", f"**Here: {verdict(findings)}.**", ""]
    missing = len(claim.conditions) - len(findings)
    if missing:
        lines += [f"{missing} of its conditions have no numbers yet: runs are missing.", ""]
    lines += [markdown(condition_cells(findings)), markdown(measure_cells(claim, result["measured"], result["before"]))]
    if result["constant"]:
        said = "; ".join(f"{task}: {value:.3f} (`{answer}`)" for task, (answer, value) in result["constant"].items())
        lines += [f"Best answer that looks at nothing, of those that occur: {said}.", ""]
    if claim.target is not None:
        censored = [
            f"{arm}, seed {seed}" for arm, of in result["measured"].items() for seed, m in of.items() if not m.get("target reached", 1.0)
        ]
        share, measure = claim.target[1], claim.target[0]
        lines += [f"Target: {share:.0%} of the way of {measure} from the start to 1, by straight lines between the evaluations.", ""]
        if censored:
            lines += [f"Not reached within the budget, so counted with all of it (a lower bound): {'; '.join(censored)}.", ""]
    return lines


def condition_cells(findings: Sequence[Finding]) -> list[list[str]]:
    """One row per condition."""
    rows = [["condition", "compared", "difference", "95% interval", "seeds", "verdict"]]
    for f in findings:
        c = f.condition
        wanted = {"greater": "more", "less": "less", "not_less": f"not less than {c.margin:g} below"}[c.kind]
        compared = f"{c.arm} - {c.than}" if c.than else c.arm
        rows.append([f"{c.text}: {wanted}", compared, number(f.difference, sign=True), span(f.low, f.high), str(f.seeds), f.verdict])
    return rows


def _in_order(name: str) -> list[tuple[int, str]]:
    """Numbers within a name by their size: `success@640` before `success@1280`."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


def measure_cells(claim: Claim, measured: Mapping[str, Mapping[int, Measures]], before: Mapping[int, Measures]) -> list[list[str]]:
    """One row per measure, one column per arm: mean over seeds and interval."""
    columns = dict(measured) | ({"before RL": before} if before else {})
    known = sorted({name for of in measured.values() for m in of.values() for name in m}, key=_in_order)
    names = [n for shown in claim.shown for n in known if n == shown or (shown.endswith("*") and n.startswith(shown[:-1]))]
    rows = [["measure", *columns]]
    for name in names:
        rows.append([name, *(_cell([m[name] for m in of.values() if name in m]) for of in columns.values())])
    return rows


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, low, high = interval(values)
    return f"{number(mean)} {span(low, high)}"


def number(value: float, *, sign: bool = False) -> str:
    """Three decimals, or none for large counts."""
    text = "+" if sign else ""
    return f"{value:{text}.0f}" if abs(value) >= 100 else f"{value:{text}.3f}"


def span(low: float, high: float) -> str:
    """An interval; nothing where one seed has none."""
    return f"[{number(low)}, {number(high)}]" if math.isfinite(low) and math.isfinite(high) else "(one seed)"


def _provenance(command: str, seeds: Sequence[int]) -> list[str]:
    import torch
    import transformers

    shown = ", ".join(f"{key} {value}" for key, value in machine().items())
    return [
        "## How it was measured",
        "",
        f"* command (the last one; finished runs of earlier ones are kept): `{command}`",
        f"* seeds asked for: {', '.join(map(str, seeds))}; the base model of a recipe is pretrained once, for all seeds and arms",
        f"* machine: {shown}",
        f"* versions: Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}; "
        f"this repository at {revision()}",
        "* recipes, arms, conditions and margins: `benchmarks/claims_cells.py`, fixed before the runs",
        "",
    ]


def summary_json(results: Results, command: str, seeds: Sequence[int]) -> dict[str, Any]:
    """All numbers, with the same verdicts."""
    import torch
    import transformers

    claims: dict[str, Any] = {}
    for name, result in results.items():
        findings = find(CLAIMS[name], result["measured"])
        claims[name] = {
            "verdict": verdict(findings),
            "holds": verdict(findings) == HOLDS,
            "conditions": [
                asdict(f.condition)
                | {"difference": f.difference, "low": finite(f.low), "high": finite(f.high), "seeds": f.seeds, "verdict": f.verdict}
                for f in findings
            ],
            "measured": {arm: {str(seed): dict(m) for seed, m in of.items()} for arm, of in result["measured"].items()},
            "before": {str(seed): dict(m) for seed, m in result["before"].items()},
            "best_constant": {task: {"answer": a, "score": s} for task, (a, s) in result["constant"].items()},
        }
    return {
        "command": command,
        "seeds": list(seeds),
        "machine": machine() | {"threads": os.environ.get("OMP_NUM_THREADS", "")},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__},
        "revision": revision(),
        "claims": claims,
    }
