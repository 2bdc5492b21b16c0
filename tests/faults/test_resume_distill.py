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
from tests.support import cases, runs
from tests.support.ranks import run_ranks
from vlmrl.extras.distill.section import Imitate
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


def imitating(files: tuple[Path, Path], root: Path) -> dict[str, Any]:
    """The same with answers of the teacher."""
    config = small(files, root, kind="teacher_sft")
    (stage,) = config["stages"]
    config["stages"] = [{key: value for key, value in stage.items() if key in Imitate.model_fields}]
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


@pytest.mark.parametrize("point", cases.some(["step.before_update@2", "rollout.chunk@3"], {"rollout.chunk@3"}))
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


@pytest.mark.slow
def test_a_teacher_that_follows_the_policy_after_a_kill(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Its weights are in the checkpoint: the same bits as without the kill, and other ones than with a teacher that stays."""
    moving = {"weights": "average", "average": {"every": 1, "decay": 0.5}, "media": {"min_pixels": 12544, "max_pixels": 12544}}
    whole, killed, still = (
        small(tiny_files, tmp_path / name, teacher=teacher)
        for name, teacher in (("whole", moving), ("killed", moving), ("still", {"media": moving["media"]}))
    )
    assert runs.run(whole) == 0, Path(whole["run"]["root"], "error.txt").read_text()
    assert runs.run(killed, "step.before_update@3:kill") == -9
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == runs.outcome(whole)
    assert runs.run(still) == 0
    lines = [
        [line["distill/gap"] for line in read_metrics(runs.run_dir(one) / "metrics.jsonl") if "distill/gap" in line]
        for one in (whole, still)
    ]
    assert lines[0][0] == lines[1][0]
    assert lines[0][1:] != lines[1][1:]


def test_the_teachers_answers_after_a_kill_and_on_two_ranks(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """What it answers is a function of coordinates: a run that was killed draws it again, and two ranks draw what one does."""
    whole, killed, together = (imitating(tiny_files, tmp_path / name) for name in ("whole", "killed", "together"))
    assert runs.run(whole) == 0, Path(whole["run"]["root"], "error.txt").read_text()
    assert runs.run(killed, "step.before_update@2:kill") == -9
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == runs.outcome(whole)
    lines = [line for line in read_metrics(runs.run_dir(whole) / "metrics.jsonl") if "loss" in line]
    assert len(lines) == 3
    assert all(line["grad_norm"] > 0 for line in lines)
    sides = json.loads((runs.run_dir(whole) / "teacher" / "rl.json").read_text())
    assert [sides[side]["max_pixels"] for side in ("student", "teacher")] == [4704, 12544]
    run_ranks(2, tmp_path / "together", runs._run, together, None)
    assert_same_updates([whole, together], steps=3)


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
