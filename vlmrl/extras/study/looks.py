"""Levels of several looks at one study: what each may spend of the error that all of them may make together.

Alpha spending of Lan and DeMets (Biometrika 70, 1983), with functions of the shape of O'Brien and Fleming's and of Pocock's bounds. Bounds
are found for normal means with known variance, by recursive integration over the looks (Armitage, McPherson and Rowe, Journal of the Royal
Statistical Society A 132, 1969). Their tail probabilities are then used as levels of Student's t tests with the degrees of freedom of each
look (Jennison and Turnbull, Group Sequential Methods with Applications to Clinical Trials, 2000, on unknown variance).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from vlmrl.extras.study.stats import ALPHA, ONCE, Level

_GRID = 601
"""Points of the integration over what the earlier looks left open."""


def _obrien_fleming(time: float, alpha: float) -> float:
    from scipy import stats

    return 2 * float(stats.norm.sf(stats.norm.isf(alpha / 2) / math.sqrt(time)))


def _pocock(time: float, alpha: float) -> float:
    return alpha * math.log(1 + (math.e - 1) * time)


SPENDING: Mapping[str, Callable[[float, float], float]] = {"obrien_fleming": _obrien_fleming, "pocock": _pocock}
"""Name -> function of the share of information and the one-sided level, which says how much of it is spent until then."""


def bounds(times: Sequence[float], spending: str, alpha: float = ALPHA) -> list[float]:
    """Compute the bounds of |z| at each look of a two-sided test.

    Args:
        times: share of all information at each look, rising to 1.
        spending: key of `SPENDING`.
        alpha: two-sided level of all looks together; each side spends half.
    """
    import numpy as np
    from scipy import integrate, optimize, stats

    spent = [2 * SPENDING[spending](time, alpha / 2) for time in times]
    out = [float(stats.norm.isf(spent[0] / 2))]
    edge = out[0] * math.sqrt(times[0])
    x = np.linspace(-edge, edge, _GRID)
    density = stats.norm.pdf(x, scale=math.sqrt(times[0]))
    for k in range(1, len(times)):
        step, target = math.sqrt(times[k] - times[k - 1]), spent[k] - spent[k - 1]

        def beyond(c: float, x=x, density=density, step=step) -> float:
            tails = stats.norm.sf((c - x) / step) + stats.norm.cdf((-c - x) / step)
            return float(integrate.simpson(density * tails, x=x))

        edge = float(optimize.brentq(lambda c, f=beyond, t=target: f(c) - t, 0.0, 12.0))  # pyright: ignore[reportArgumentType]
        out.append(edge / math.sqrt(times[k]))
        grid = np.linspace(-edge, edge, _GRID)
        density = integrate.simpson(np.asarray(density)[None, :] * stats.norm.pdf(grid[:, None] - x[None, :], scale=step), x=x, axis=1)
        x = grid
    return out


def levels(looks: Sequence[int], spending: str | None) -> list[Level]:
    """Compute the level of each look, by numbers of seeds; of a single one it is the plain one."""
    from scipy import stats

    if spending is None or len(looks) == 1:
        return [ONCE]
    times = [n / looks[-1] for n in looks]
    two, one = bounds(times, spending), bounds(times, spending, 2 * ALPHA)
    return [Level(2 * float(stats.norm.sf(a)), float(stats.norm.sf(b))) for a, b in zip(two, one, strict=True)]
