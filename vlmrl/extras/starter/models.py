"""Finds the model of a recipe on this machine: a folder, or what the hub's cache holds. The network is never asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.extras.starter.recipe import MODEL
from vlmrl.policy.found import problem_of

KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
"""Model types that train without a report of `vlmrl check MODEL`; a test holds this against `families`, whose import loads torch."""


def find_model(given: str | None) -> tuple[str, str]:
    """The model that a recipe is to name, and how it was found.

    Args:
        given: folder or hub id; None takes the default model if it is here, else the only model of the hub's cache that can be trained.

    Raises:
        ConfigError: it is not on this machine, or not whole; with the command that gets it.
    """
    if given is not None:
        missing = problem_of(given)
        if missing is not None:
            raise ConfigError(f"--model: {missing}")
        return given, "a folder" if Path(given).expanduser().is_dir() else "in the hub's cache on this machine"
    if problem_of(MODEL) is None:
        return MODEL, "the default, in the hub's cache on this machine; another with --model"
    here = cached()
    if len(here) == 1:
        return here[0], "the only model in the hub's cache that can be trained; another with --model"
    if here:
        raise ConfigError(f"--model: the hub's cache holds several models; give one of them: {', '.join(here)}")
    raise ConfigError(f"--model: none is given, and the default is not here: {problem_of(MODEL)}, or give --model FOLDER")


def cached() -> list[str]:
    """Ids of the models in the hub's cache that can be trained."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = (repo for repo in repos if repo.repo_type == "model")
    known = [repo.repo_id for repo in models if any(_type(Path(one.snapshot_path)) in KINDS for one in repo.revisions)]
    return sorted(name for name in known if problem_of(name) is None)


def _type(folder: Path) -> str:
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(config.get("model_type")) if isinstance(config, dict) else ""
