"""What a recipe may say about low-rank adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.config.schema import Config, validate
from vlmrl.families.qwen_vl import LANGUAGE_TARGETS
from vlmrl.run.session import fixed_options


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


def _quantised(change: Callable[[dict[str, Any]], None] = lambda raw: None) -> Config:
    def apply(raw: dict[str, Any]) -> None:
        raw["model"]["quantize"] = "nf4"
        raw["stages"] = raw["stages"][1:]
        change(raw)

    return _config(apply)


def test_weights_in_4_bits_go_with_adapters_alone() -> None:
    assert validate(_quantised()) == []
    (problem,) = validate(_quantised(lambda raw: raw["model"].pop("lora")))
    assert problem == "model.quantize (nf4): weights in 4 bits do not train, and nothing else would; set model.lora, or leave it out"
    (problem,) = validate(_quantised(lambda raw: raw.update(train={"sharding": "zero3"})))
    assert problem.endswith("as train.sharding 'zero3' would; take ddp")
    (problem,) = validate(_quantised(lambda raw: raw["stages"].append(raw["stages"][0] | {"name": "again"})))
    assert "keep one of the 2 stages, and begin another run from its folder 'final'" in problem
    (problem,) = validate(_quantised(lambda raw: raw["stages"][0]["rollout"].update(engine="vllm")))
    assert problem.startswith("stages[0] (rl): rollout.engine 'vllm'")
    (problem,) = validate(_quantised(lambda raw: raw["stages"][0]["rollout"].update(graphs=True)))
    assert problem.startswith("stages[0] (rl): rollout.graphs")


def test_a_run_cannot_change_between_4_bits_and_32() -> None:
    """And one that was begun before there was a choice goes on."""
    plain = _quantised(lambda raw: raw["model"].pop("quantize"))
    assert "quantize" not in fixed_options(plain)["model"]
    assert fixed_options(_quantised())["model"]["quantize"] == "nf4"
