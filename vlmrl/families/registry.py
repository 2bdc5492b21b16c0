"""The model types that training knows, each with its family."""

from __future__ import annotations

from vlmrl.errors import ConfigError
from vlmrl.families.base import Family
from vlmrl.families.qwen_vl import QwenVL

FAMILIES: dict[str, Family] = {
    "qwen2_vl": QwenVL(name="qwen2_vl"),
    "qwen2_5_vl": QwenVL(name="qwen2_5_vl", time_scaled=True),
    "qwen3_vl": QwenVL(name="qwen3_vl", step_times=True),
}
"""Supported model types. The mixture-of-experts variants are left out: no training run has been checked with a router."""


def family_of(model_type: str, path: str) -> Family:
    """The family of a model type.

    Raises:
        ConfigError: no such family.
    """
    if model_type not in FAMILIES:
        raise ConfigError(
            f"model.path: '{path}' is a '{model_type}' model; supported: {', '.join(FAMILIES)}\n"
            f"  vlmrl conform {path} tries it against what exact training needs"
        )
    return FAMILIES[model_type]
