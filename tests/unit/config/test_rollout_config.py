"""What a recipe may say about the engine that generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.config.schema import Config, RolloutSection, RolloutStage, validate
from vlmrl.errors import ConfigError
from vlmrl.extras.vllm.serving import sections
from vlmrl.run.engines import ENGINES, bounds_of, longest_prompt
from vlmrl.run.session import fixed_options


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


def test_a_conversation_grows_as_long_as_the_engine_has_room_for_an_answer() -> None:
    def longest(**rollout: Any) -> int:
        made = config(max_new_tokens=100, **rollout)
        stage = made.stages[1]
        assert isinstance(stage, RolloutStage)
        return longest_prompt(made, stage.rollout) - made.data.max_prompt_tokens

    assert longest() == longest(engine="vllm") == longest(engine="vllm", vllm={"max_model_len": 10**6}) == 0
    most = config().data.max_prompt_tokens
    assert longest(engine="vllm", vllm={"max_model_len": most + 40}) == -60


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


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"servers": ["gpu7"]}, "rollout.vllm.servers: expected HOST:PORT, as 127.0.0.1:7000, got 'gpu7'"),
        ({"servers": ["http://localhost:7000"]}, "expected HOST:PORT"),
        ({"servers": ["127.0.0.1:70000"]}, "expected HOST:PORT"),
        ({"servers": ["::1:7000"]}, "expected HOST:PORT"),
        ({"servers": ["10.0.0.7:7000"]}, "10.0.0.7:7000 is on another machine, and rollout.vllm.token_file is not given"),
        ({"servers": ["gpu7:7000"]}, "gpu7:7000 is on another machine"),
        ({"servers": ["localhost:7000", "localhost:7000"]}, "localhost:7000 is there twice"),
        ({"token_file": "token"}, "rollout.vllm.token_file is given, but rollout.vllm.servers is empty"),
        ({"servers": ["127.0.0.1:7000"], "sleep": True}, "rollout.vllm.sleep is of vLLM in the trainer's process"),
    ],
)
def test_servers_that_cannot_be_asked_are_named(given: dict[str, Any], problem: str) -> None:
    (found,) = validate(config(engine="vllm", vllm=given))
    assert problem in found


def test_steps_of_fixed_shape_are_of_the_policy_itself_with_whole_weights() -> None:
    assert validate(config(graphs=True)) == []
    (problem,) = validate(config(engine="vllm", graphs=True))
    assert "rollout.graphs is for the engine 'hf', and rollout.engine is 'vllm'" in problem
    raw = config(graphs=True).model_dump(mode="json")
    (problem,) = validate(Config.model_validate(raw | {"train": raw["train"] | {"sharding": "fsdp"}}))
    assert "rollout.graphs records steps over weights that lie in one place" in problem


def test_servers_on_this_machine_need_no_token_and_others_do() -> None:
    for servers in (["127.0.0.1:7000", "localhost:7001", "[::1]:7002"], ["127.0.0.2:7000"]):
        assert validate(config(engine="vllm", vllm={"servers": servers})) == []
    assert validate(config(engine="vllm", vllm={"servers": ["10.0.0.7:7000"], "token_file": "token"})) == []


def test_what_a_server_is_started_with_is_said_by_the_stages_that_use_vllm() -> None:
    raw = config(engine="vllm", vllm={"memory": 0.9}, max_new_tokens=100).model_dump(mode="json")
    raw["stages"].append(raw["stages"][1] | {"name": "more"})
    raw["stages"][2]["rollout"] = raw["stages"][2]["rollout"] | {"max_new_tokens": 500, "vllm": None}
    both = Config.model_validate(raw)
    rollout, room = sections(both, None)
    assert (rollout.vllm.memory if rollout.vllm else None) == 0.9
    assert room == both.data.max_prompt_tokens + 500, "the largest of the stages"
    assert sections(both, "more")[0].vllm is None
    with pytest.raises(ConfigError, match=r"--stage: 'sft' is no stage that generates with vllm \(these do: rl, more\)"):
        sections(both, "sft")
    with pytest.raises(ConfigError, match="no stage of this recipe generates with vllm"):
        sections(config(), None)


def test_bounds_of_the_gap_are_the_recipes_then_the_engines() -> None:
    assert (bounds_of(RolloutSection()).warn, bounds_of(RolloutSection()).stop) == (None, None)
    vllm = bounds_of(RolloutSection.model_validate({"engine": "vllm", "max_gap": {"stop": 0.5}}))
    assert (vllm.warn, vllm.stop) == (0.02, 0.5)
    nucleus = bounds_of(RolloutSection.model_validate({"engine": "vllm", "top_p": 0.5}))
    assert nucleus.warn == pytest.approx(0.02 + 0.6931, abs=1e-4), "the nucleus has a share of at least top_p"


def test_how_vllm_runs_may_change_on_resume_and_which_engine_may_not() -> None:
    assert fixed_options(config(engine="vllm")) == fixed_options(config(engine="vllm", vllm={"memory": 0.7}, max_gap={"stop": 0.1}))
    assert fixed_options(config(engine="vllm")) != fixed_options(config())
