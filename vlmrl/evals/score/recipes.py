"""Recipes of runs whose evaluations are compared: what of them makes a method, what a run starts from, and its seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmrl.evals.score.runfiles import stored_recipe

NOT_MEASURED = "how much another seed changes is not measured"
ONE_RUN = f"one run of each side: {NOT_MEASURED} (vlmrl compare A1 A2 A3 -- B1 B2 B3)"
"""Stands under every table of two single runs."""
_OF_THE_RUN = frozenset({"seed", "name", "root", "trackers", "threads", "push_to_hub"})
"""Settings of `run` that make no other method."""


def run_of(path: Path) -> Path | None:
    """Find the run that an evaluation is of: the run itself, its folder `eval`, or what lies in that. None for any other."""
    folders = (path, *path.absolute().parents[:3])
    return next((folder for folder in folders if (folder / "config.yaml").is_file()), None)


def recipe_of(path: Path) -> dict[str, Any] | None:
    """Read the recipe of the run that an evaluation is of; None where it is of no run.

    Raises:
        StorageError: the recipe is damaged.
    """
    run = run_of(path)
    return None if run is None else stored_recipe(run)[1]


def recipe_seed(recipe: Mapping[str, Any]) -> int:
    """Read `run.seed` of a recipe."""
    section = recipe.get("run")
    return int(section.get("seed") or 0) if isinstance(section, Mapping) else 0


def method_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a recipe the seed, and where and how its run is kept: two runs of one method have the rest in common."""
    section = recipe.get("run")
    kept = {key: value for key, value in section.items() if key not in _OF_THE_RUN} if isinstance(section, Mapping) else section
    return {**recipe, "run": kept}


def start_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Read what a run starts from and learns from: its base model, the generated world, and the rows of its stages."""
    model, stages = recipe.get("model"), recipe.get("stages")
    base = {key: model.get(key) for key in ("path", "revision")} if isinstance(model, Mapping) else model
    sources = [stage.get("source") for stage in stages if isinstance(stage, Mapping)] if isinstance(stages, list) else []
    rows = [json.dumps(source, sort_keys=True, default=str) for source in sources if source is not None]
    return {"base": base, "world": recipe.get("toy"), "data": [recipe.get("data"), sorted(set(rows))]}
