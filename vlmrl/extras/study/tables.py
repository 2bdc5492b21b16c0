"""The tables of a comparison: premises, conditions, measures by arm."""

from __future__ import annotations

import math

from vlmrl.extras.study.judge import Finding, OfArms
from vlmrl.extras.study.spec import Comparison, Condition, Premise
from vlmrl.extras.study.stats import ALPHA, Estimate, estimate


def premise_rows(one: Finding) -> list[list[str]]:
    """Make a row per premise."""
    rows = [["premise", "measured in", "wanted", "mean", "met"]]
    for finding in one.premises:
        premise = finding.premise
        where = premise.arm if premise.control is None else f"{premise.arm} - {premise.control}"
        value = "-" if finding.value is None else number(finding.value)
        rows.append([premise.title, where, bounds(premise), value, "-" if finding.value is None else "yes" if finding.met else "no"])
    return rows


def condition_rows(one: Finding) -> list[list[str]]:
    """Make a row for what decides, and then one per further condition."""
    rows = [["condition", "compared", "effect", "95% interval", "seeds", "p (Holm)", "shown"]]
    comparison = one.comparison
    rows.append([f"**{title(comparison)}**", compared(comparison), *effect_cells(one.found), count(one.found), "", one.verdict])
    for other in one.secondary:
        text = other.condition.title + (f", not lower by {other.condition.margin:g}" if other.condition.margin else "")
        p = "-" if other.p_holm is None else f"{other.p_holm:.3g}"
        shown = "-" if other.found is None else "yes" if other.shown else "no"
        rows.append([text, compared(other.condition), *effect_cells(other.found), count(other.found), p, shown])
    return rows


def measure_rows(comparison: Comparison, measured: OfArms) -> list[list[str]]:
    """Make a row per measure that is named, and a column per arm: mean over seeds and interval."""
    arms = [arm for arm in arms_of(comparison) if measured.get(arm)]
    parts = (*comparison.secondary, *comparison.premises)
    named = [str(comparison.measure), *(part.measure for part in parts), *comparison.shown]
    rows = [["measure", *arms]]
    for name in dict.fromkeys(named):
        cells = [[of[name] for of in measured[arm].values() if name in of] for arm in arms]
        if any(cells):
            rows.append([name, *("-" if not values else _cell(estimate(values)) for values in cells)])
    return rows


def seed_rows(one: Finding, measured: OfArms) -> list[list[str]]:
    """Make a row per seed: the measure that decides in both arms, and the effect."""
    comparison, measure = one.comparison, str(one.comparison.measure)
    arms = [arm for arm in (comparison.arm, comparison.control) if arm is not None]
    rows = [["seed", *arms, "effect"]]
    for seed in sorted({seed for arm in arms for seed in measured.get(arm, {})}):
        cells = [measured[arm][seed].get(measure) if seed in measured.get(arm, {}) else None for arm in arms]
        effect = "-" if seed not in one.by_seed else number(one.by_seed[seed], sign=True)
        rows.append([str(seed), *("-" if value is None else number(value) for value in cells), effect])
    return rows


def arms_of(comparison: Comparison) -> list[str]:
    """List all arms that its numbers come from, in the order in which they are named."""
    named = [comparison.arm, comparison.control, *(name for s in comparison.secondary for name in (s.arm, s.control))]
    named += [name for p in comparison.premises for name in (p.arm, p.control)]
    return list(dict.fromkeys(name for name in named if name))


def title(comparison: Comparison) -> str:
    """Say what decides."""
    return comparison.text or str(comparison.measure)


def compared(condition: Comparison | Condition) -> str:
    """Say what is subtracted from what."""
    lower = condition.direction == "lower"
    if condition.control is None:
        return f"-({condition.arm})" if lower else condition.arm
    first, second = (condition.control, condition.arm) if lower else (condition.arm, condition.control)
    return f"{first} - {second}"


def bounds(premise: Premise) -> str:
    """Write `at least a`, `at most b` or `a to b`."""
    if premise.low is not None and premise.high is not None:
        return f"{premise.low:g} to {premise.high:g}"
    return f"at least {premise.low:g}" if premise.low is not None else f"at most {premise.high:g}"


def effect_cells(found: Estimate | None) -> list[str]:
    """Write an effect and its interval."""
    return ["-", "-"] if found is None else [number(found.mean, sign=True), span(found)]


def count(found: Estimate | None) -> str:
    """Write the number of seeds."""
    return "0" if found is None else str(found.n)


def power_cells(one: Finding) -> list[str]:
    """Write seeds, the chance of `holds` were the effect delta, and of `no effect above delta` were there none."""
    if one.power is None or one.power_null is None:
        return [count(one.found), "-", "-"]
    return [count(one.found), f"{one.power.holds:.2f}", f"{one.power_null.no_effect:.2f}"]


def _cell(found: Estimate) -> str:
    return f"{number(found.mean)} {span(found)}"


def number(value: float, *, sign: bool = False) -> str:
    """Write three decimals, or none for large counts."""
    text = "+" if sign else ""
    return f"{value:{text}.0f}" if abs(value) >= 100 else f"{value:{text}.3f}"


def span(found: Estimate) -> str:
    """Write an interval, with its confidence where that is not 95%; one seed has none."""
    if not math.isfinite(found.low):
        return "(one seed)"
    return f"[{number(found.low)}, {number(found.high)}]" + ("" if found.alpha == ALPHA else f" ({1 - found.alpha:.2%})")
