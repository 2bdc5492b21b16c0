"""What a study can tell with its seeds, said before its first run: from pilots, or from a spread that the file gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.extras.study.judge import OfArms, Resolution, values_of
from vlmrl.extras.study.looks import levels
from vlmrl.extras.study.power import ENOUGH, MOST, Power, power_of_looks, seeds_for
from vlmrl.extras.study.spec import Comparison, Spread, Study
from vlmrl.extras.study.stats import estimate, upper_sd


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What one comparison can tell."""

    name: str
    delta: float
    seeds: int
    sd: float
    """Deviation over seeds that is planned with."""
    source: str
    at_delta: Power
    at_twice: Power
    at_none: Power
    wanted: int | None
    """Seeds for a power of 80% at delta, judged once; None beyond `power.MOST`."""

    def line(self) -> str:
        """Say it in a sentence."""
        more = f"about {self.wanted} seeds" if self.wanted else f"more than {MOST} seeds"
        return (
            f"{self.name}: with {self.seeds} seeds and a deviation of {self.sd:.3g} ({self.source}), an effect of delta = {self.delta:g} "
            f"holds with a chance of {self.at_delta.holds:.2f}, one of {2 * self.delta:g} with {self.at_twice.holds:.2f}; where there is "
            f"none, delta is excluded with {self.at_none.no_effect:.2f}. {ENOUGH:.0%} at delta wants {more}"
        )


def planned(spread: Spread) -> float:
    """Compute the deviation to plan with: the upper 80% limit of an estimate, or an assumption as it is."""
    return spread.sd if spread.seeds is None else upper_sd(spread.sd, spread.seeds)


def forecast(study: Study, comparison: Comparison, spread: Spread) -> Forecast:
    """Simulate one comparison with the study's seeds and looks."""
    delta = comparison.delta
    assert delta is not None
    least = min(len(study.seeds_of(arm, study.seeds)) for arm in (comparison.arm, comparison.control) if arm is not None)
    looks = [n for n in study.looks_at if n < least] + [least]
    at = levels(study.looks_at, None if study.looks is None else study.looks.spending)[-len(looks) :]
    sd = planned(spread)
    told = [
        power_of_looks(effect, sd, looks, delta, at) if least > 1 else Power(holds=0.0, no_effect=0.0) for effect in (delta, 2 * delta, 0.0)
    ]
    how = spread.source or ("assumed" if spread.seeds is None else "estimated")
    source = how if spread.seeds is None else f"{how}: {spread.sd:.3g} of {spread.seeds} seeds, at its upper 80% limit"
    return Forecast(
        name=str(comparison.name),
        delta=delta,
        seeds=least,
        sd=sd,
        source=source,
        at_delta=told[0],
        at_twice=told[1],
        at_none=told[2],
        wanted=seeds_for(delta, sd, delta),
    )


def of_pilot(comparison: Comparison, measured: OfArms, resolution: Resolution) -> Spread | None:
    """Estimate the spread of a comparison's difference from pilots; None where it has fewer than two numbers, or none that vary."""
    measure = str(comparison.measure)
    found = values_of(measured, comparison.arm, comparison.control, measure)
    if len(found) < 2:
        return None
    sd = estimate(list(found.values()), resolution(measure)).sd
    return Spread(sd=sd, seeds=len(found), source="pilot") if sd > 0 else None


def forecasts(study: Study, pilot: OfArms | None, resolution: Resolution) -> list[Forecast]:
    """Forecast every comparison, as far as its spread is known."""
    out: list[Forecast] = []
    for one in study.questions():
        spread = one.spread if pilot is None else of_pilot(one, pilot, resolution)
        if spread is not None:
            out.append(forecast(study, one, spread))
    return out


def seconds_text(costs: Sequence[tuple[str, float]]) -> str:
    """Mean processor seconds of each kind of run, with their numbers."""
    kinds: dict[str, list[float]] = {}
    for kind, seconds in costs:
        kinds.setdefault(kind, []).append(seconds)
    return ", ".join(f"{kind} {sum(of) / len(of):.0f} s ({len(of)})" for kind, of in kinds.items())
