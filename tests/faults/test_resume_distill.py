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

BOTH: dict[str, Any] = {"auxiliary_losses": [{"name": "teacher_jsd", "weight": 0.5}]}


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


def wider(model: Path, folder: Path) -> Path:
    """A model of twice the width with the same tokenizer."""
    import transformers

    wide = folder / "wide"
    config: Any = transformers.AutoConfig.from_pretrained(model)
    shutil.copytree(model, wide)
    for size in ("hidden_size", "num_attention_heads", "num_key_value_heads"):
        setattr(config.text_config, size, 2 * getattr(config.text_config, size))
    config.vision_config.out_hidden_size *= 2
    torch.manual_seed(0)
    transformers.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(wide)
    return wide


def test_a_teacher_of_another_size(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Twice as wide, with the same tokenizer: its hidden states and output matrix meet the policy's in the divergence."""
    model, world = tiny_files
    wide = wider(model, tmp_path)
    run = small((model, world), tmp_path, steps=1, teacher={"weights": str(wide)}, **BOTH)
    assert runs.run(run) == 0, Path(run["run"]["root"], "error.txt").read_text()
    line = next(line for line in read_metrics(runs.run_dir(run) / "metrics.jsonl") if "distill/gap" in line)
    assert line["distill/prompt_tokens/teacher"] == line["distill/prompt_tokens/student"]
    assert line["distill/gap"] != 0 < line["auxiliary/teacher_jsd"]


def test_a_teacher_that_sees_a_crop_after_a_kill_and_on_two_ranks(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Videos whose quarter the teacher sees behind the whole: the same bits and the same record as without the kill, and the same updates
    and records on two ranks."""
    model, world = tiny_files
    rows = tmp_path / "world"
    shutil.copytree(world, rows)
    lines = [json.loads(line) for line in (rows / "train.jsonl").read_text().splitlines()]
    for line in lines:
        place = line["meta"]["events"][0]["quarter"]
        line["meta"]["box"] = [0.5 * (place % 2), 0.5 * (place // 2), 0.5 * (place % 2) + 0.5, 0.5 * (place // 2) + 0.5]
    (rows / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen = {"max_pixels": 4704, "crop": "meta.box", "margin": 0.1, "beside": True}
    whole, killed, together = (small((model, rows), tmp_path / name, teacher={"media": seen}) for name in ("whole", "killed", "together"))
    assert runs.run(whole) == 0, Path(whole["run"]["root"], "error.txt").read_text()
    assert runs.run(killed, "step.before_update@2:kill") == -9
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == runs.outcome(whole)
    records = [(runs.run_dir(one) / "teacher" / "rl.rank-0.jsonl").read_bytes() for one in (whole, killed)]
    assert records[0] == records[1]
    assert all(len(json.loads(line)["teacher"]["media"]) == 2 for line in records[0].splitlines())
    sides = json.loads((runs.run_dir(whole) / "teacher" / "rl.json").read_text())
    assert sides["teacher"]["crop"] == {"name": "box", "margin": 0.1, "beside": True}
    assert "crop" not in sides["student"]
    run_ranks(2, tmp_path / "together", runs._run, together, None)
    assert_same_updates([whole, together], steps=3)
    lists = [(runs.run_dir(together) / "teacher" / f"rl.rank-{rank}.jsonl").read_bytes() for rank in range(2)]
    assert {line for one in lists for line in one.splitlines()} == set(records[0].splitlines())


# ---- weights in shards -----------------------------------------------------------------------------------------------------

FOLLOWS = {"weights": "average", "average": {"every": 1, "decay": 0.5}, "media": {"min_pixels": 12544, "max_pixels": 12544}}
LORA = {"lora": {"rank": 4, "alpha": 8.0}}
PLACED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fsdp": ("fsdp", {}, {}),
    "adapters": ("fsdp", {}, LORA),
    "a tower that trains": ("fsdp", {"freeze": []}, {}),
    "an average": ("fsdp", {"teacher": FOLLOWS}, {}),
    "an average with zero2": ("zero2", {"teacher": FOLLOWS}, {}),
    "zero2": ("zero2", {}, {}),
    "zero3": ("zero3", {}, {}),
    "zero3 and adapters": ("zero3", {}, LORA),
}
"""What is tried -> (train.sharding, of the stage, of the model)."""


def uneven(
    files: tuple[Path, Path], root: Path, train: dict[str, Any], model: dict[str, Any] | None = None, **stage: Any
) -> dict[str, Any]:
    """Two steps of three prompts in small micro-batches: of two ranks one has twice as many as the other."""
    config = small(files, root, **({"steps": 2, "max_tokens_per_microbatch": 160} | stage))
    config["stages"][0]["rollout"] |= {"prompts_per_step": 3}
    config["model"] |= model or {}
    return config | {"train": train}


def assert_taught_alike(alone: dict[str, Any], together: dict[str, Any], *, steps: int = 2) -> None:
    """One process and two ranks: the same scores of the teacher, the same updates."""
    for number, config in enumerate((alone, together), start=1):
        run_ranks(number, Path(config["run"]["root"]), runs._run, config, None)
    assert_same_updates([alone, together], steps=steps)
    logs = [read_metrics(runs.run_dir(one) / "metrics.jsonl") for one in (alone, together)]
    for one, other in zip(*([line for line in log if "distill/gap" in line] for log in logs), strict=True):
        for name in (name for name in one if name.startswith(("distill/", "auxiliary/teacher"))):
            assert other[name] == pytest.approx(one[name], abs=2e-5), name


@pytest.mark.parametrize("name", cases.some(PLACED, {"fsdp"}))
def test_two_ranks_with_shards_are_taught_as_one_process(name: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    sharding, stage, model = PLACED[name]
    alone, together = (uneven(tiny_files, tmp_path / of, {"sharding": of}, model, **(BOTH | stage)) for of in ("ddp", sharding))
    assert_taught_alike(alone, together)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
def test_shards_of_a_teacher_of_another_size(sharding: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    teacher = {"weights": str(wider(tiny_files[0], tmp_path))}
    alone, together = (uneven(tiny_files, tmp_path / of, {"sharding": of}, teacher=teacher, **BOTH) for of in ("ddp", sharding))
    assert_taught_alike(alone, together)


@pytest.mark.slow
@pytest.mark.parametrize("train", [{"sequence": 2}, {"sharding": "fsdp", "sequence": 2}])
def test_rows_on_several_ranks_are_taught_as_on_one(train: dict[str, Any], tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    alone, together = uneven(tiny_files, tmp_path / "alone", {}), uneven(tiny_files, tmp_path / "together", train)
    assert_taught_alike(alone, together)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["fsdp", "zero2", "zero3"])
def test_answers_of_a_teacher_in_shards(sharding: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    alone, together = (imitating(tiny_files, tmp_path / of) | {"train": {"sharding": of}} for of in ("ddp", sharding))
    for number, config in enumerate((alone, together), start=1):
        run_ranks(number, Path(config["run"]["root"]), runs._run, config, None)
    assert_same_updates([alone, together], steps=3)


@pytest.mark.parametrize("teacher", cases.some(["start", "average"], {"average"}))
def test_shards_after_a_kill(teacher: str, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Both ranks are gone in the third step; the average lies in the checkpoint whole."""
    stage = BOTH | ({"teacher": FOLLOWS} if teacher == "average" else {})
    whole, killed = (uneven(tiny_files, tmp_path / name, {"sharding": "fsdp"}, steps=3, **stage) for name in ("whole", "killed"))
    run_ranks(2, tmp_path / "whole", runs._run, whole, None)
    with pytest.raises(AssertionError, match="ended with -9"):
        run_ranks(2, tmp_path / "killed", runs._run, killed, "step.before_update@3:kill")
    assert (runs.run_dir(killed) / "checkpoints" / "step-00000002").is_dir()
    run_ranks(2, tmp_path / "killed", runs._run, killed, None)
    assert runs.outcome(killed) == runs.outcome(whole)


# ---- sampled ahead ---------------------------------------------------------------------------------------------------------


def test_sampled_ahead_and_killed(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """The teacher scores answers of older weights when they are trained; those in flight come back from the checkpoint."""
    whole, killed = (small(tiny_files, tmp_path / name, importance_correction={"name": "tis"}, **BOTH) for name in ("whole", "killed"))
    for config in (whole, killed):
        config["stages"][0]["rollout"]["staleness"] = 1
    assert runs.run(whole) == 0, Path(whole["run"]["root"], "error.txt").read_text()
    lines = [line for line in read_metrics(runs.run_dir(whole) / "metrics.jsonl") if "distill/gap" in line]
    assert [line["rollout/staleness"] for line in lines] == [0.0, 1.0, 1.0]
    assert all(line["distill/gap"] != 0 < line["auxiliary/teacher_jsd"] for line in lines)
    assert runs.run(killed, "step.before_update@3:kill") == -9
    assert runs.run(killed) == 0
    assert runs.outcome(killed) == runs.outcome(whole)
