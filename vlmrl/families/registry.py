"""The model types that training knows, each with its family, and the ways to choose one (`model.family`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.families.base import REPORT, Family, is_reported
from vlmrl.families.qwen_vl import QwenVL
from vlmrl.registry import Catalogue

OWN = (QwenVL(name="qwen2_vl"), QwenVL(name="qwen2_5_vl", time_scaled=True), QwenVL(name="qwen3_vl", step_times=True))
FAMILIES: Catalogue[Family] = Catalogue("model type", {family.name: family for family in OWN})
"""Model types with code of their own, here or in an optional part. The mixture-of-experts variants are left out: no training run has been
checked with a router."""
AUTO = "auto"
REFERENCE = "repeat"
"""The layout that every model runs in."""


def family_of(model_type: str, path: str) -> Family:
    """Look up the family of a model type that has code of its own.

    Raises:
        ConfigError: no such family.
    """
    if model_type not in FAMILIES:
        raise ConfigError(
            f"model.path: '{path}' is a '{model_type}' model; supported: {', '.join(FAMILIES)}\n"
            f"  vlmrl check {path} tries it against what exact training needs; with model.family: generic it trains through its own "
            "processor and forward"
        )
    return FAMILIES[model_type]


CHOICES: Catalogue[Callable[[str, str, str | None], Family]] = Catalogue(
    "family", {"qwen_vl": lambda model_type, path, _: family_of(model_type, path)}
)
"""What `model.family` may name, beside `auto`: (model type, path, revision) -> family."""


def choose(wanted: str, model_type: str, path: str, revision: str | None = None) -> Family:
    """Choose the family that a recipe asks for. `auto`: that of the model type; else what an exported folder says of itself; else, where
    a report of `vlmrl check` beside the model admits a layout, the generic one.

    Raises:
        ConfigError: no such family, or the model type has none, or the report cannot be read.
        CheckpointError: as `exported_as`.
    """
    if wanted == AUTO:
        named = exported_as(path)
        if named is None and model_type not in FAMILIES and is_reported(path):
            from vlmrl.families.report import REPORTS

            named = "generic" if REFERENCE in REPORTS[REPORT](path).admitted() else None
        wanted = named or "qwen_vl"
    if wanted not in CHOICES:
        raise ConfigError(f"model.family: unknown '{wanted}'; known: {AUTO}, {', '.join(CHOICES)}")
    return CHOICES[wanted](model_type, path, revision)


def exported_as(path: str) -> str | None:
    """Read the family that a folder which we exported was trained as; None for any other folder.

    Raises:
        CheckpointError: the folder's `vlmrl.json` is damaged.
    """
    name = read_json(Path(path).expanduser() / "vlmrl.json").get("family")
    return name if isinstance(name, str) else None


def read_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty where there is no file.

    Raises:
        CheckpointError: the file is damaged: cut short, unreadable, or no object.
    """
    try:
        body = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if not isinstance(body, dict):
            raise ValueError(f"expected an object, got {type(body).__name__}")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: damaged: {error}; export the model again, or copy this file anew") from error
    return body
