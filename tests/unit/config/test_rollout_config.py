"""What a recipe may say about the engine that generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.config.schema import Config, RolloutSection, RolloutStage, validate
from vlmrl.train.session import fixed_options
from vlmrl.train.stage.engines import ENGINES, bounds_of


def config(model: dict[str, Any] | None = None, **rollout: Any) -> Config:
    raw = runs.small_config(Path("model"), Path("world"), Path("runs"))
    raw["model"] |= model or {}
    raw["stages"][1]["rollout"] |= rollout
    return Config.model_validate(raw)


def test_the_policy_itself_generates_where_nothing_is_said() -> None:
    stage = config().stages[1]
    assert isinstance(stage, RolloutStage)
    assert stage.rollout.engine == "hf"
    assert validate(config()) == validate(config(engine="vllm")) == []
    assert set(ENGINES) == {"hf", "vllm"}


def test_contradictions_are_named() -> None:
    (problem,) = validate(config(vllm={"memory": 0.5}))
    assert "rollout.vllm is given, but rollout.engine is 'hf'" in problem
    (problem,) = validate(config(engine="vllm", vllm={"max_model_len": 10}))
    assert "rollout.vllm.max_model_len (10) leaves no room" in problem
    (problem,) = validate(config(max_gap={"warn": 0.5, "stop": 0.1}))
    assert "rollout.max_gap.warn (0.5) is above rollout.max_gap.stop (0.1)" in problem
    (problem,) = validate(config({"positions": "grid"}, engine="vllm"))
    assert "stages[1] (rl): rollout.engine 'vllm' knows the positions 'max' only" in problem
    assert validate(config({"positions": "grid"})) == []
    for wrong in ({"memory": 1.0}, {"block_size": 17}, {"sync_probe_every": 0}, {"tp": 2}):
        with pytest.raises(ValueError, match=f"rollout.vllm.{next(iter(wrong))}"):
            config(engine="vllm", vllm=wrong)


def test_bounds_of_the_gap_are_the_recipes_then_the_engines() -> None:
    assert (bounds_of(RolloutSection()).warn, bounds_of(RolloutSection()).stop) == (None, None)
    vllm = bounds_of(RolloutSection.model_validate({"engine": "vllm", "max_gap": {"stop": 0.5}}))
    assert (vllm.warn, vllm.stop) == (0.02, 0.5)
    nucleus = bounds_of(RolloutSection.model_validate({"engine": "vllm", "top_p": 0.5}))
    assert nucleus.warn == pytest.approx(0.02 + 0.6931, abs=1e-4), "the nucleus has a share of at least top_p"


def test_how_vllm_runs_may_change_on_resume_and_which_engine_may_not() -> None:
    assert fixed_options(config(engine="vllm")) == fixed_options(config(engine="vllm", vllm={"memory": 0.7}, max_gap={"stop": 0.1}))
    assert fixed_options(config(engine="vllm")) != fixed_options(config())
