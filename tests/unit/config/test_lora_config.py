"""What a recipe may say about low-rank adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.config.schema import Config, validate
from vlmrl.families.qwen_vl import LANGUAGE_TARGETS


def _config(change: Callable[[dict[str, Any]], None]) -> Config:
    raw = runs.small_config(Path("model"), Path("world"), Path("runs"))
    raw["model"]["lora"] = {"rank": 4}
    change(raw)
    return Config.model_validate(raw)


def test_contradictions_in_a_recipe_are_named() -> None:
    good = _config(lambda raw: None)
    assert validate(good) == []
    assert good.model.lora is not None
    assert good.model.lora.targets == LANGUAGE_TARGETS
    (problem,) = validate(_config(lambda raw: raw["model"]["lora"].update(dropout=0.1)))
    assert problem.startswith("model.lora.dropout (0.1): must be 0")
    (problem,) = validate(_config(lambda raw: raw["stages"][1].update(freeze=["language"])))
    assert "stages[1] (rl): freeze (language)" in problem
    assert validate(_config(lambda raw: (raw["stages"][1].update(freeze=["language"]), raw["model"]["lora"].update(vision=True)))) == []
    with pytest.raises(ValueError, match=r"model\.lora\.targets"):
        _config(lambda raw: raw["model"]["lora"].update(targets=["lm_head"]))
    with pytest.raises(ValueError, match=r"model\.lora\.rank"):
        _config(lambda raw: raw["model"]["lora"].update(rank=0))
