"""A stage `distill`: killed and started again it ends with the same bits, two ranks train like one, and both sides are on record."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.test_two_ranks import assert_same_updates
from tests.support import runs
from tests.support.ranks import run_ranks
from vlmrl.run.tracking import read_metrics

BOTH = {"auxiliary_losses": [{"name": "teacher_jsd", "weight": 0.5}]}


def small(files: tuple[Path, Path], root: Path, **stage: Any) -> dict[str, Any]:
    """A stage of three steps on small frames, whose teacher is the start with larger ones."""
    config = runs.small_config(*files, root)
    (rl,) = config["stages"] = config["stages"][1:]
    for field in ("rewards", "advantage", "beta"):
        del rl[field]
    rl |= {"kind": "distill", "steps": 3, "teacher": {"media": {"min_pixels": 12544, "max_pixels": 12544}}} | stage
    del config["eval"]
    return config


@pytest.fixture(scope="module")
def uninterrupted(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    config = small(tiny_files, tmp_path_factory.mktemp("whole"), **BOTH)
    assert runs.run(config) == 0, Path(config["run"]["root"], "error.txt").read_text()
    return config, runs.outcome(config)


def test_what_is_logged_and_recorded(uninterrupted: tuple[dict[str, Any], dict[str, Any]]) -> None:
    config, _ = uninterrupted
    path = runs.run_dir(config)
    lines = [line for line in read_metrics(path / "metrics.jsonl") if "distill/gap" in line]
    assert len(lines) == 3
    for line in lines:
        assert line["distill/gap"] == line["distill/gap/video"] == line["distill/task_gap/temporal_grounding"] != 0
        assert line["distill/prompt_tokens/teacher"] > 1.5 * line["distill/prompt_tokens/student"]
        assert line["auxiliary/teacher_jsd"] > 0 < line["grad_norm"]
        assert line["groups_with_signal"] == 4
        assert not any(name.startswith("rewards/") for name in line)
    sides = json.loads((path / "teacher" / "rl.json").read_text())
    assert [sides[side]["max_pixels"] for side in ("student", "teacher")] == [4704, 12544]
    seen = [json.loads(line) for line in (path / "teacher" / "rl.rank-0.jsonl").read_text().splitlines()]
    assert len(seen) == len({line["row"] for line in seen}) == 12
    assert all(line["student"]["media"] != line["teacher"]["media"] for line in seen)


@pytest.mark.parametrize("point", ["step.before_update@2", "rollout.chunk@3"])
def test_killed_and_started_again(point: str, uninterrupted: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    config, expected = uninterrupted
    mine = copy.deepcopy(config)
    mine["run"]["root"] = str(tmp_path)
    assert runs.run(mine, f"{point}:kill") == -9, f"{point} is never passed"
    assert runs.run(mine) == 0
    assert runs.outcome(mine) == expected
    records = [(runs.run_dir(one) / "teacher" / "rl.rank-0.jsonl").read_bytes() for one in (config, mine)]
    assert records[0] == records[1]


def test_two_ranks_equal_one(uninterrupted: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    config, _ = uninterrupted
    mine = copy.deepcopy(config)
    mine["run"]["root"] = str(tmp_path)
    run_ranks(2, tmp_path, runs._run, mine, None)
    assert_same_updates([config, mine], steps=3)
    alone, together = ([line for line in read_metrics(runs.run_dir(one) / "metrics.jsonl")] for one in (config, mine))
    for one, other in zip(alone, together, strict=True):
        for name in (name for name in one if name.startswith("distill/")):
            assert other[name] == pytest.approx(one[name], abs=2e-5), name


def test_a_teacher_of_another_size(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Twice as wide, with the same tokenizer: its hidden states and output matrix meet the policy's in the divergence."""
    import transformers

    model, world = tiny_files
    wide = tmp_path / "wide"
    config: Any = transformers.AutoConfig.from_pretrained(model)
    shutil.copytree(model, wide)
    for size in ("hidden_size", "num_attention_heads", "num_key_value_heads"):
        setattr(config.text_config, size, 2 * getattr(config.text_config, size))
    config.vision_config.out_hidden_size *= 2
    torch.manual_seed(0)
    transformers.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(wide)
    run = small((model, world), tmp_path, steps=1, teacher={"weights": str(wide)}, **BOTH)
    assert runs.run(run) == 0, Path(run["run"]["root"], "error.txt").read_text()
    line = next(line for line in read_metrics(runs.run_dir(run) / "metrics.jsonl") if "distill/gap" in line)
    assert line["distill/prompt_tokens/teacher"] == line["distill/prompt_tokens/student"]
    assert line["distill/gap"] != 0 < line["auxiliary/teacher_jsd"]
