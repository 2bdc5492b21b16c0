"""Which runs of two methods belong together: those of one seed, if it means the same on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.evals.score.recipes import method_of, recipe_of, recipe_seed, start_of


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The evaluations of two methods; where they are paired, in the order of their seeds."""

    a: tuple[Path, ...]
    b: tuple[Path, ...]
    seeds: tuple[tuple[int, ...], tuple[int, ...]] | None
    """`run.seed` of each; None where an evaluation is of no run."""
    apart: str
    """Why they are not paired; empty where they are."""
    one_recipe: bool
    """Whether all runs of both sides have one recipe, their seeds aside."""

    @property
    def paired(self) -> bool:
        """Whether runs of one seed are compared with each other."""
        return not self.apart

    def texts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Paths of both sides."""
        return tuple(map(str, self.a)), tuple(map(str, self.b))

    def design(self) -> str:
        """Say how the seeds are compared, and why so."""
        if self.paired and self.seeds is not None:
            listed = ", ".join(map(str, self.seeds[0]))
            return f"Student's t over {len(self.a)} seeds ({listed}), paired by seed, with base and data shared"
        return f"Welch's t over {len(self.a)} and {len(self.b)} runs, not paired: {self.apart}"


def sides_of(first: Sequence[Path], second: Sequence[Path]) -> Sides:
    """Pair evaluations by the seed of their runs, or say why they are no pairs.

    Raises:
        ConfigError: a side has one evaluation, or a seed twice.
        StorageError: the recipe of a run is damaged.
    """
    if len(first) < 2 or len(second) < 2:
        counts = f"{len(first)} and {len(second)} evaluations"
        raise ConfigError(f"{counts}: a t interval over seeds needs two of each side, and shows little below 3")
    recipes = [[recipe_of(path) for path in side] for side in (first, second)]
    known = [recipe for side in recipes for recipe in side if recipe is not None]
    if len(known) < len(first) + len(second):
        unknown = "not all are of runs, so their seeds are not known"
        return Sides(a=tuple(first), b=tuple(second), seeds=None, apart=unknown, one_recipe=False)
    one_recipe = all(method_of(recipe) == method_of(known[0]) for recipe in known)
    a, b = (_by_seed(side, of) for side, of in zip((first, second), recipes, strict=True))
    apart = _apart(a, b)
    return Sides(
        **{"a": tuple(path for path, _ in a.values()), "b": tuple(path for path, _ in b.values())},
        **{"seeds": (tuple(a), tuple(b)), "apart": apart, "one_recipe": one_recipe},
    )


Run = tuple[Path, Mapping[str, Any]]


def _by_seed(side: Sequence[Path], recipes: Sequence[Mapping[str, Any] | None]) -> dict[int, Run]:
    out: dict[int, Run] = {}
    for path, recipe in zip(side, recipes, strict=True):
        seed = recipe_seed(recipe or {})
        if seed in out:
            raise ConfigError(f"{path}: another run of its side has the same run.seed ({seed}); of each side one run per seed")
        out[seed] = path, recipe or {}
    return dict(sorted(out.items()))


def _apart(a: Mapping[int, Run], b: Mapping[int, Run]) -> str:
    """Why runs with one seed are no pairs; empty where they are."""
    if a.keys() != b.keys():
        return "the sides have other seeds"
    for seed in a:
        x, y = start_of(a[seed][1]), start_of(b[seed][1])
        other = [key for key in x if x[key] != y[key]]
        if other:
            return f"they do not share their {' and '.join(other)}"
    return ""
