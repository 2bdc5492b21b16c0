"""The model types that training knows, each with its family, and the ways to choose one (`model.family`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.families.base import Family
from vlmrl.families.given import Given
from vlmrl.families.qwen_vl import QwenVL
from vlmrl.families.verdict import admitted

FAMILIES: dict[str, Family] = {
    "qwen2_vl": QwenVL(name="qwen2_vl"),
    "qwen2_5_vl": QwenVL(name="qwen2_5_vl", time_scaled=True),
    "qwen3_vl": QwenVL(name="qwen3_vl", step_times=True),
}
"""Model types with code of their own. The mixture-of-experts variants are left out: no training run has been checked with a router."""
AUTO = "auto"
REFERENCE = "repeat"
"""The layout that every model runs in."""


def family_of(model_type: str, path: str) -> Family:
    """The family of a model type that has code of its own.

    Raises:
        ConfigError: no such family.
    """
    if model_type not in FAMILIES:
        raise ConfigError(
            f"model.path: '{path}' is a '{model_type}' model; supported: {', '.join(FAMILIES)}\n"
            f"  vlmrl conform {path} tries it against what exact training needs; with model.family: generic it trains through its own "
            "processor and forward"
        )
    return FAMILIES[model_type]


def generic(model_type: str, path: str, revision: str | None = None) -> Family:
    """Any model type, by what its files say. Raises ConfigError where they cannot be read."""
    from transformers import AutoConfig, GenerationConfig
    from transformers.utils.hub import cached_file

    where = str(Path(path).expanduser()) if Path(path).expanduser().exists() else path
    try:
        config = AutoConfig.from_pretrained(where, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: cannot load the config of '{path}': {str(error).strip().splitlines()[0]}") from error
    generation: Any = None
    with contextlib.suppress(OSError, ValueError):  # many folders have none; the config then says what ends an answer
        file = cached_file(where, "generation_config.json", revision=revision)
        generation = None if file is None else GenerationConfig.from_dict(_read(Path(file)))
    return Given(name=model_type, config=config, generation=generation)


CHOICES: dict[str, Callable[[str, str, str | None], Family]] = {
    "qwen_vl": lambda model_type, path, _: family_of(model_type, path),
    "generic": generic,
}
"""What `model.family` may name, beside `auto`: (model type, path, revision) -> family."""


def choose(wanted: str, model_type: str, path: str, revision: str | None = None) -> Family:
    """The family that a recipe asks for. `auto`: that of the model type; else what an exported folder says of itself; else, where a
    report of `vlmrl conform` beside the model admits a layout, the generic one.

    Raises:
        ConfigError: no such family, or the model type has none, or the report cannot be read.
    """
    if wanted == AUTO:
        named = exported_as(path)
        if named is None and model_type not in FAMILIES and REFERENCE in admitted(path):
            named = "generic"
        wanted = named or "qwen_vl"
    if wanted not in CHOICES:
        raise ConfigError(f"model.family: unknown '{wanted}'; known: {AUTO}, {', '.join(CHOICES)}")
    return CHOICES[wanted](model_type, path, revision)


def exported_as(path: str) -> str | None:
    """The family that a folder which we exported was trained as; None for any other folder."""
    name = _read(Path(path).expanduser() / "vlmrl.json").get("family")
    return name if isinstance(name, str) else None


def _read(file: Path) -> dict[str, Any]:
    """An object in a JSON file; empty where there is none."""
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
