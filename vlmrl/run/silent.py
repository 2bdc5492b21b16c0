"""Methods that change nothing, from what is logged of them: `touched/<slot>.<name>/<what>`, the share of a step that each has changed.

What a run says while it trains and what its page says afterwards are the same texts. Without torch: pages read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PREFIX = "touched/"
ZEROED = "zeroed"
"""Share of what was not 0 before a method and is 0 behind it: a harm, and no proof that the method does something."""
AFTER = 10
"""Steps in a row without a change after which that is said."""
EMPTIED = 3
"""Steps in a row in which a method has set everything to 0 after which that is said."""


def by_method(names: Sequence[str]) -> dict[str, list[str]]:
    """Group names of the log by the method that they are about, `<slot>.<name>`; what is about none is left out."""
    out: dict[str, list[str]] = {}
    for name in names:
        if name.startswith(PREFIX):
            out.setdefault(name.split("/")[1], []).append(name)
    return out


def idle(values: Mapping[str, float], names: Sequence[str]) -> bool:
    """Tell whether a step's values of a method, under these names, say that it changed nothing."""
    return not any(values[name] for name in names if not name.endswith(f"/{ZEROED}"))


def changed_nothing(method: str, steps: str) -> str:
    """Write that a method (`<slot>.<name>`) changed nothing. `steps`: in which, in words."""
    return (
        f"{spoken(method)} changed nothing {steps}: the run trains as it would without it. That is right where it waits (a warm-up, a "
        "fault that has not come); else the rows, the rewards or its arguments lack what it needs"
    )


def emptied(method: str, steps: str) -> str:
    """Write that a method has left no advantage that is not 0."""
    return f"{spoken(method)} set every advantage to 0 {steps}: nothing is learnt; look at its arguments, or drop it"


def spoken(method: str) -> str:
    """Write `<slot>.<name>` as messages do: `loss 'gspo'`."""
    slot, _, name = method.partition(".")
    return f"{slot.removeprefix('policy_')} '{name}'"


Series = Mapping[str, Mapping[int, float]]
"""Name in the log -> step of the run -> value."""


def silent_methods(columns: Series) -> list[str]:
    """List what is to be said of a run that is over or goes on: per method the longest stretch of steps in which it changed nothing."""
    out: list[str] = []
    for method, names in by_method(sorted(columns)).items():
        steps = sorted({step for name in names for step in columns[name]})
        series = {name: columns[name] for name in names}
        for still, least, text in ((_idle_at, AFTER, changed_nothing), (_emptied_at, EMPTIED, emptied)):
            stretch = _longest([step for step in steps if still(series, step)], steps)
            if len(stretch) >= least:
                out.append(text(method, f"in steps {stretch[0]} to {stretch[-1]} of the run"))
    return out


def _idle_at(series: Series, step: int) -> bool:
    return idle({name: values.get(step, 0.0) for name, values in series.items()}, list(series))


def _emptied_at(series: Series, step: int) -> bool:
    return any(name.endswith(f"/{ZEROED}") and values.get(step) == 1.0 for name, values in series.items())


def _longest(found: Sequence[int], steps: Sequence[int]) -> list[int]:
    """The longest run of neighbours among `steps` that are all in `found`."""
    best: list[int] = []
    now: list[int] = []
    members = set(found)
    for step in steps:
        now = [*now, step] if step in members else []
        best = now if len(now) > len(best) else best
    return best
