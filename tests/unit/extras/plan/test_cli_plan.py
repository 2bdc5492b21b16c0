"""The command `plan`, and the warning of `check`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vlmrl import cli
from vlmrl.config.load import load
from vlmrl.extras.plan.advice import candidates
from vlmrl.extras.plan.gpus import GPUS, gpu_of
from vlmrl.extras.plan.model import named_shape
from vlmrl.extras.plan.settings import MOVES_REFERENCE, settings_of
from vlmrl.methods import registries

Run = Callable[..., tuple[int, str, str]]
RECIPE = """
model: {path: Qwen/Qwen2.5-VL-3B-Instruct, dtype: bfloat16, gradient_checkpointing: true}
data: {max_prompt_tokens: 4096}
stages:
  - {kind: sft, name: warm, source: {path: a.jsonl}, steps: 1}
  - kind: grpo
    name: rl
    source: {path: a.jsonl}
    steps: 1
    rewards: [{name: exact}]
    beta: 0.1
    updates_per_step: 2
    rollout: {prompts_per_step: 24, num_generations: 4, max_new_tokens: 512}
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(*arguments: str, columns: int = 200) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", *arguments])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return str(path)


def planned(run: Run, recipe: str, *arguments: str) -> dict[str, Any]:
    code, out, err = run("plan", recipe, "--json", *arguments)
    assert (code, err) == (0, "")
    return json.loads(out)


def test_80_columns_are_enough(run: Run, recipe: str) -> None:
    """No word and no path is cut or folded."""
    wide, narrow = (run("plan", recipe, "--gpu", "rtx4090", columns=columns)[1] for columns in (400, 80))
    assert max(map(len, narrow.splitlines())) <= 80
    assert "does not fit" in wide
    assert {word for word in wide.split() if word.isascii()} <= set(narrow.split())


def test_settings_are_those_of_the_recipe(recipe: str) -> None:
    cfg = load(Path(recipe), []).config
    found = settings_of(cfg, cfg.stages[1], shape=named_shape("qwen2.5-vl-3b"), gpu=gpu_of("h100"), gpus=8)
    assert (found.sharding, found.offload, found.recompute, found.dtype) == ("ddp", "none", True, "bfloat16")
    assert (found.groups, found.answers, found.prompt, found.answer) == (3, 4, 4096, 512)
    assert (found.reference, found.passes, found.engine) == (True, 2.0, "hf")
    supervised = settings_of(cfg, cfg.stages[0], shape=found.shape, gpu=found.gpu, gpus=1)
    assert (supervised.sharding, supervised.engine, supervised.answers, supervised.groups) == ("none", "none", 1, 8)


def test_a_reference_that_moves_is_planned_for(recipe: str) -> None:
    """It is a second model also where beta is 0, and every row is scored by it."""
    overrides = ["stages.rl.beta=0", "stages.rl.reward_shaping=[{name: care_consistency, reward: format}]"]
    named = {"shape": named_shape("qwen2.5-vl-3b"), "gpu": gpu_of("h100"), "gpus": 1}
    plain, moving = (load(Path(recipe), given).config for given in (overrides[:1], overrides))
    still, found = (settings_of(cfg, cfg.stages[1], **named) for cfg in (plain, moving))
    assert (still.reference, still.moves) == (False, False)
    assert (found.reference, found.moves, found.passes) == (True, True, still.passes + 1)


def test_every_method_that_moves_its_reference_is_known() -> None:
    own = {
        name
        for of in registries().values()
        for name in of.names()
        if of.get(name).function.__module__.startswith("vlmrl.") and of.get(name).extra.get("moves_reference")
    }
    assert own == MOVES_REFERENCE


def test_what_is_left_to_the_machine_is_planned_as_on_a_gpu(recipe: str) -> None:
    named = {"shape": named_shape("qwen2.5-vl-3b"), "gpu": gpu_of("h100"), "gpus": 1}
    said = load(Path(recipe), []).config
    left = load(Path(recipe), ["model.dtype=auto", "model.gradient_checkpointing=auto"]).config
    assert settings_of(left, left.stages[1], **named) == settings_of(said, said.stages[1], **named)


def test_options_win_over_the_recipe(run: Run, recipe: str) -> None:
    found = planned(run, recipe, "--gpus", "8", "--sharding", "fsdp", "--prompt", "1000", "--answer", "100", "--no-recompute")
    assert found["settings"]["sharding"] == "fsdp"
    assert (found["settings"]["prompt"], found["settings"]["answer"], found["settings"]["recompute"]) == (1000, 100, False)
    assert found["stage"] == "rl"
    assert found["microbatches"] == [3 * 1400]
    warm = planned(run, recipe, "--stage", "warm", "--engine", "vllm")
    assert (warm["stage"], warm["settings"]["engine"], warm["seconds"]["rollout"]) == ("warm", "none", 0)
    assert planned(run, recipe, "--engine", "vllm")["settings"]["engine"] == "vllm"
    assert planned(run, recipe, "data.max_prompt_tokens=2000")["settings"]["prompt"] == 2000


@pytest.mark.parametrize(
    ("vllm", "gpus", "kept"),
    [
        ("{}", 1, 0.4),
        ("{memory: 0.3}", 1, 0.3),
        ("{memory: 0.3, sleep: true}", 1, 0.0),
        ("{servers: ['127.0.0.1:7000']}", 1, 0.0),
        ("{}", 8, 0.0),
    ],
)
def test_what_vllm_keeps_while_the_policy_trains(recipe: str, vllm: str, gpus: int, kept: float) -> None:
    cfg = load(Path(recipe), ["stages.rl.rollout.engine=vllm", f"stages.rl.rollout.vllm={vllm}"]).config
    named = {"shape": named_shape("qwen2.5-vl-3b"), "gpu": gpu_of("h100"), "gpus": gpus}
    found = settings_of(cfg, cfg.stages[1], **named)
    assert found.vllm_keeps == kept
    assert settings_of(cfg, cfg.stages[1], **named, given={"engine": "hf"}).vllm_keeps == 0.0
    assert any("rollout.vllm.sleep=true" in what for what, _ in candidates(found, "rl")) == (kept > 0)


def test_json_adds_up(run: Run, recipe: str) -> None:
    found = planned(run, recipe, "--gpus", "8")
    parts, state = found["memory_bytes"]["parts"], found["memory_bytes"]["state"]
    assert parts["state"] == sum(state[name] for name in ("weights", "gradients", "moments", "reference"))
    assert found["memory_bytes"]["peak"] == max(found["memory_bytes"]["phases"].values())
    seconds = found["seconds"]
    assert seconds["step"] == pytest.approx(sum(seconds[name] for name in ("rollout", "score", "forward/backward", "shard traffic")))
    assert seconds["score"] > 0
    assert found["computed"] == "not measured on a GPU"


def test_a_model_that_is_not_there(run: Run, recipe: str) -> None:
    found = planned(run, recipe, "--shape", "qwen2.5-vl-72b", "--gpus", "64", "--sharding", "fsdp")
    assert found["parameters"]["trained"] == 73410777344
    code, _, err = run("plan", recipe, "model.path=nowhere/at-all")
    assert code == 64
    assert "--shape" in err


def test_a_folder_with_a_config(run: Run, recipe: str, tmp_path: Path) -> None:
    from tests.support import saved_bytes

    model = saved_bytes.build("qwen3_vl")
    model.config.save_pretrained(tmp_path)
    found = planned(run, recipe, f"model.path={tmp_path}")
    assert found["parameters"]["trained"] == sum(p.numel() for p in model.parameters())


def test_tables_and_advice(run: Run, recipe: str) -> None:
    code, out, _ = run("plan", recipe, "--shape", "qwen2.5-vl-7b")
    assert code == 0
    for text in ("computed, not measured", "state", "working set", "activations", "tower", "head", "rollout", "forward/backward"):
        assert text in out
    assert "does not fit" in out
    assert "model.lora={rank: 16}" in out
    assert "GPUs" in out
    _, out, _ = run("plan", recipe, "--gpus", "8", "--sharding", "fsdp")
    assert "GB: fits" in out
    assert "each change" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpu", "h1000"],
        ["--shape", "gpt"],
        ["--sharding", "zero1"],
        ["--offload", "some"],
        ["--engine", "sglang"],
        ["--stage", "no"],
        ["--gpus", "0"],
    ],
)
def test_wrong_options(run: Run, recipe: str, arguments: list[str]) -> None:
    code, _, err = run("plan", recipe, *arguments)
    assert code == 64
    assert err


def test_help_names_every_gpu_and_shape(run: Run) -> None:
    _, out, _ = run("plan", "--help")
    for name in GPUS:
        assert name in out


def test_check_warns_only_where_a_gpu_is_named(run: Run, recipe: str) -> None:
    code, out, _ = run("check", recipe, "--no-data")
    assert code == 0
    assert "plan" not in out
    code, out, _ = run("check", recipe, "--no-data", "--gpu", "h100")
    assert code == 0
    assert "warning: stage 'rl' (computed, not measured)" in out
    _, out, _ = run("check", recipe, "--no-data", "--gpu", "h100", "model.lora={rank: 8}")
    assert "warning" not in out
    code, _, err = run("check", recipe, "--no-data", "--gpu", "h100:many")
    assert code == 64
    assert "TYPE:NUMBER" in err


def test_check_goes_on_where_the_model_is_not_there(run: Run, recipe: str) -> None:
    code, out, _ = run("check", recipe, "--no-data", "--gpu", "h100", "model.path=nowhere/at-all")
    assert code == 0
    assert "plan: skipped" in out
