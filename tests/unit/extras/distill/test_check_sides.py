"""What `vlmrl check` says of both sides, and what a plan counts of the teacher."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.unit.extras.distill.test_distill_section import recipe
from vlmrl.config.schema import Config
from vlmrl.extras.distill.check import check_sides
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.model import named_shape
from vlmrl.extras.plan.recipe import verdict
from vlmrl.extras.plan.result import plan
from vlmrl.extras.plan.settings import settings_of
from vlmrl.run.audit_report import AuditReport


def report(model: Path, world: Path, **stage: Any) -> AuditReport:
    found = AuditReport()
    check_sides(found, Config.model_validate(recipe(**stage)), str(model), world)
    return found


def test_tokens_of_both_sides(tiny_files: tuple[Path, Path]) -> None:
    """Of 68 x 60 pixels 28 x 28 are left for the policy and 56 x 56 for the teacher: a token and four for each pair of frames."""
    found = report(*tiny_files)
    assert found.problems == []
    (note,) = found.notes
    assert "stage 'distill': a prompt has 56 tokens for the policy (at most 58) and 78 for the teacher (at most 82)" in note
    assert "by the first 50 rows; the teacher reads up to 4316 tokens in a step, forward alone, and the policy trains on up to 3972" in note


def test_a_teacher_that_sees_nothing_else_is_pointed_out(tiny_files: tuple[Path, Path]) -> None:
    (note,) = report(*tiny_files, teacher={}).notes
    assert note.endswith("it sees nothing else than the policy, which it is")


@pytest.mark.parametrize(("media", "said"), [({"max_pixels": 4704, "min_pixels": 3136}, True), ({"max_frames": 8}, False)])
def test_coordinates_in_pixels_are_pointed_out_where_the_teacher_sees_another_size(
    tiny_files: tuple[Path, Path], media: dict[str, int], said: bool, tmp_path: Path
) -> None:
    model, world = tiny_files
    row = json.loads((world / "train.jsonl").read_text().splitlines()[0])
    box = {
        "id": "a",
        "task": "boxes",
        "answer_type": "bbox",
        "prompt": "Where?",
        "gt": {"boxes": [[1, 2, 30, 40]]},
        "meta": {"frame": "pixel"},
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(box | {"image": "a.png"}) + "\n" + json.dumps(row) + "\n")
    Image.new("RGB", (84, 56)).save(tmp_path / "a.png")
    (tmp_path / row["video"]).parent.mkdir(parents=True)
    shutil.copy(world / row["video"], tmp_path / row["video"])
    (note,) = report(model, tmp_path, source={"path": "rows.jsonl"}, teacher={"media": media}).notes
    assert ("1 of them have coordinates in pixels" in note) is said


def test_another_tokenizer_is_refused_with_both_sizes(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    model, world = tiny_files
    other = tmp_path / "other"
    shutil.copytree(model, other)
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"].append({**last, "id": last["id"] + 1, "content": "<|one_more|>"})
    file.write_text(json.dumps(tokenizer))
    (problem,) = report(model, world, teacher={"weights": str(other)}).problems
    assert f"its tokenizer has {last['id'] + 2} ids and that of model.path {last['id'] + 1}" in problem
    assert "'<|one_more|>' there, None here" in problem
    assert report(model, world, teacher={"weights": str(model)}).problems == []


def test_a_teacher_that_answers_is_told_and_planned(tiny_files: tuple[Path, Path]) -> None:
    made = recipe(kind="teacher_sft")
    found = AuditReport()
    check_sides(found, Config.model_validate(made), str(tiny_files[0]), tiny_files[1])
    assert "the teacher reads and writes up to 4316 tokens in a step" in found.notes[0]
    config = Config.model_validate(made)
    settings = settings_of(config, config.stages[0], shape=named_shape("qwen2.5-vl-3b"), gpu=gpu_of("h100"), gpus=1)
    assert (settings.passes, settings.reference, settings.teacher, settings.engine) == (0.0, True, True, "hf")


def test_a_teacher_that_moves_is_planned_as_exact_as_the_policy() -> None:
    for weights, moves in (("start", False), ("average", True)):
        config = Config.model_validate(recipe(teacher={"weights": weights}))
        settings = settings_of(config, config.stages[0], shape=named_shape("qwen2.5-vl-3b"), gpu=gpu_of("h100"), gpus=1)
        assert settings.moves is moves


def test_room_of_a_server_is_told_and_its_teacher_takes_none_here(tiny_files: tuple[Path, Path]) -> None:
    """The teacher's longest prompt has 82 tokens."""
    served = {"weights": "server", "servers": ["127.0.0.1:7000"], "media": {"min_pixels": 3136, "max_pixels": 4704}}
    (note,) = report(*tiny_files, teacher=served).notes
    config = Config.model_validate(recipe(teacher=served))
    longest = config.stages[0].rollout.max_new_tokens + 82  # pyright: ignore
    assert f"a server of the teacher needs room for {longest} tokens (--max-model-len)" in note
    settings = settings_of(config, config.stages[0], shape=named_shape("qwen2.5-vl-3b"), gpu=gpu_of("h100"), gpus=1)
    assert (settings.passes, settings.reference, settings.teacher) == (1.0, False, False)


@pytest.mark.parametrize(("reweight", "passes"), [(["teacher_reverse_kl"], 2.0), ([], 1.0)])
def test_a_plan_counts_the_passes(reweight: list[str], passes: float) -> None:
    methods = {"reweight": [{"name": name} for name in reweight], "auxiliary_losses": [{"name": "teacher_jsd"}]}
    config = Config.model_validate(recipe(**methods))
    settings = settings_of(config, config.stages[0], shape=named_shape("qwen2.5-vl-3b"), gpu=gpu_of("h100"), gpus=1)
    assert (settings.passes, settings.reference, settings.teacher) == (passes, True, True)
    assert any("vlmrl check says how much longer" in line for line in verdict("distill", plan(settings)))


def test_screens_of_tasks_are_told_and_their_hints_looked_for(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Of 28 x 28 pixels a screen has a token: 784 pixels at most for the policy, 4704 for the teacher."""
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "desk", "environment": {"length": 2}}) + "\n")
    stage = {"source": {"path": "tasks.jsonl"}, "environment": {"name": "toy_desk"}}
    (note,) = report(tiny_files[0], tmp_path, **stage).notes
    assert "the teacher reads every turn of an episode once more, forward alone" in note
    assert "a screen has at most 1 tokens for the policy and 6 for the teacher" in note
    for hint in ("meta.way", "answer"):
        (problem,) = report(tiny_files[0], tmp_path, teacher={"hint": hint}, **stage).problems
        assert "row 'desk'" in problem
        assert f"teacher.hint '{hint}', and the row has none" in problem


def boxes(folder: Path, *rows: dict[str, Any]) -> None:
    """Rows about one picture of 336 x 336 pixels."""
    shared = {"task": "boxes", "prompt": "Where?", "image": "a.png"}
    (folder / "rows.jsonl").write_text("".join(json.dumps(shared | {"id": str(n)} | row) + "\n" for n, row in enumerate(rows)))
    Image.new("RGB", (336, 336)).save(folder / "a.png")


def test_a_crop_has_tokens_of_its_own(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Of the quarter 56 x 56 pixels are left: four tokens, as of the whole; beside the whole they are four more."""
    boxes(tmp_path, *[{"answer_type": "exact_text", "answer": "x", "meta": {"box": [0, 0, 0.5, 0.5]}}] * 2)
    counts: list[int] = []
    for more in ({}, {"beside": True}):
        media = {"min_pixels": 3136, "max_pixels": 3136, "crop": "meta.box", **more}
        found = report(tiny_files[0], tmp_path, source={"path": "rows.jsonl"}, teacher={"media": media})
        assert found.problems == []
        (note,) = found.notes
        counts.append(int(note.split(" for the teacher")[0].rsplit(" ", 1)[-1]))
    assert counts[1] == counts[0] + 4 + 2, "a picture of four tokens stands between two of its own"


def test_rows_that_no_crop_can_be_made_for_are_refused(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    located = {"answer_type": "bbox", "gt": {"boxes": [[1, 2, 30, 40]]}, "meta": {"frame": "norm1000", "box": [0, 0, 0.5, 0.5]}}
    boxes(tmp_path, located, located)
    teacher: dict[str, Any] = {"media": {"crop": "meta.box"}}
    (problem,) = report(tiny_files[0], tmp_path, source={"path": "rows.jsonl"}, teacher=teacher).problems
    assert problem.startswith("stage 'distill': teacher.media.crop: 2 rows have answers of the type 'bbox', the first is '0'")
    assert "set teacher.media.beside: true" in problem
    teacher["media"]["beside"] = True
    assert report(tiny_files[0], tmp_path, source={"path": "rows.jsonl"}, teacher=teacher).problems == []
    boxes(tmp_path, located, located | {"meta": {"frame": "norm1000"}})
    (problem,) = report(tiny_files[0], tmp_path, source={"path": "rows.jsonl"}, teacher=teacher).problems
    assert "row '1' (" in problem
    assert "rows.jsonl:2): teacher.media.crop is meta.box, and the row has none; give it x1, y1, x2, y2" in problem
