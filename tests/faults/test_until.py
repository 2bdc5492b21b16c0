"""A stage with `until` ends where its held-out rows are answered well enough: with the same step and bits however it was stopped.

The rows are videos of the tiny world with one and the same answer, which is learned in a few steps.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_two_ranks import launch
from tests.support import cases, runs, tiny
from vlmrl.evals.score.records import read_records
from vlmrl.run.tracking import read_metrics

Config = dict[str, Any]
STEPS, EVERY, SCORE = 30, 2, 0.9
OPTIM = {"lr": 2e-3, "schedule": "constant", "warmup": 0.0}


def make_rows(world: Path) -> None:
    """`easy_sft.jsonl` and `easy_test.jsonl`: the answer is always the same word."""
    for split in ("sft", "test"):
        rows = [json.loads(line) for line in (world / f"{split}.jsonl").read_text().splitlines()]
        easy = [
            {key: row[key] for key in ("id", "data_type", "video", "prompt")}
            | {"task": "constant", "answer_type": "exact_text", "answer": "red"}
            for row in rows
        ]
        (world / f"easy_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in easy))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    model, world = tiny.make_files(tmp_path_factory.mktemp("easy"), sft=8, train=1, test=4)
    make_rows(world)
    return model, world


def recipe(files: tuple[Path, Path], root: Path, *, until: dict[str, Any] | None = None, **more: Any) -> Config:
    """A stage that ends by its score, and one after it. Checkpoints fall beside the looks, and looks beside checkpoints."""
    root.mkdir(exist_ok=True, parents=True)
    config = runs.small_config(*files, root)
    shared = {"kind": "sft", "source": {"path": "easy_sft.jsonl"}, "batch": 4, "answer_format": "answer_only", "freeze": ["vision"]}
    look = {"source": {"path": "easy_test.jsonl"}, "score": SCORE, "every": EVERY, "max_new_tokens": 12} | (until or {})
    first = shared | {"name": "first", "steps": STEPS, "until": look, "optim": OPTIM}
    after = shared | {"name": "after", "steps": 2, "optim": OPTIM}
    return config | {"eval": {"at_start": False, "batch_prompts": 2}, "checkpoint": {"every": 3}, "stages": [first, after]} | more


def elsewhere(config: Config, root: Path) -> Config:
    out = copy.deepcopy(config)
    out["run"]["root"] = str(root)
    return out


def outcome(config: Config) -> dict[str, Any]:
    return runs.outcome(config) | {"looks": sorted(path.read_text() for path in (runs.run_dir(config) / "eval" / "until").iterdir())}


def metrics(config: Config) -> list[dict[str, Any]]:
    return read_metrics(runs.run_dir(config) / "metrics.jsonl")


def steps_of(config: Config, stage: str) -> list[int]:
    return [line["step"] for line in metrics(config) if line["stage"] == stage and "loss" in line]


def scores_of(config: Config, stage: str) -> dict[int, float]:
    return {line["step"]: line["until/score"] for line in metrics(config) if line["stage"] == stage and "until/score" in line}


def said(config: Config) -> list[str]:
    return (Path(config["run"]["root"]) / "said.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def uninterrupted(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, Any], int]:
    """A config, its outcome, and the step that its first stage ended with."""
    config = recipe(files, tmp_path_factory.mktemp("whole"))
    assert runs.run(config) == 0
    return config, outcome(config), steps_of(config, "first")[-1]


Whole = tuple[Config, dict[str, Any], int]


def test_a_stage_ends_with_the_look_that_sees_its_score(uninterrupted: Whole) -> None:
    config, expected, last = uninterrupted
    assert steps_of(config, "first") == list(range(1, last + 1))
    scores = scores_of(config, "first")
    assert list(scores) == list(range(EVERY, last + 1, EVERY))
    assert EVERY < last < STEPS, "the rows must be learned within the stage, and not before its first look"
    assert all(score < SCORE for score in list(scores.values())[:-1])
    assert scores[last] >= SCORE
    assert f"first: held-out score {scores[last]:.3f} after {last} steps (0.9 was asked for)" in said(config)
    records = read_records(runs.run_dir(config) / "eval" / "until" / "first.jsonl")
    assert len(records) == 4
    assert sum(record.scores["exact"] for record in records) / 4 == scores[last], "the records of the last look alone"
    assert steps_of(config, "after") == [1, 2]
    assert expected["state"]["global_step"] == last + 2
    assert expected["state"]["held_out_score"] is None, "the next stage starts without a score"
    assert expected["weights"]["stages/first"] != expected["weights"]["stages/after"] == expected["weights"]["final"]


def test_looking_changes_nothing_of_training(uninterrupted: Whole, tmp_path: Path) -> None:
    """The same number of steps without `until` gives the same weights, and one look more as well."""
    config, expected, last = uninterrupted
    plain = elsewhere(config, tmp_path / "plain")
    (tmp_path / "plain").mkdir()
    plain["stages"][0] |= {"steps": last, "until": None}
    assert runs.run(plain) == 0
    assert runs.outcome(plain)["weights"] == expected["weights"]


def test_a_finished_run_is_not_looked_at_again(uninterrupted: Whole) -> None:
    config, expected, _ = uninterrupted
    assert runs.run(config) == 0
    assert said(config)[-1].endswith("is already finished")
    assert outcome(config) == expected


POINTS = {
    "before the step that reaches it": lambda last: f"step.before_update@{last}",
    "after its update": lambda last: f"step.after_update@{last}",
    "before the look": lambda last: f"step.after_log@{last}",
    "within the first look": lambda last: "eval.record@1",
    "within the last look": lambda last: f"eval.record@{last - 1}",
    "at the end of the last look": lambda last: f"eval.record@{last}",
    "before the last save": lambda last: f"ckpt.start@{last // 3 + 1}",
    "after the last save": lambda last: f"ckpt.after_rename@{last // 3 + 1}",
    "before the export": lambda last: "export.written@1",
    "after the export": lambda last: "stage.exported@1",
    "before the next stage": lambda last: "stage.finished@1",
    "in the next stage": lambda last: f"step.after_log@{last + 1}",
}


@pytest.mark.parametrize(
    "point",
    cases.some(
        POINTS,
        {"within the last look", "before the last save", "in the next stage"},
    ),
)
def test_killed_around_a_look(point: str, uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected, last = uninterrupted
    assert last % 3, "the last save must be that of the end and not one that was due"
    assert scores_of(config, "first").keys() == set(range(2, last + 1, 2)), "two batches of records per look: as many as steps"
    mine = elsewhere(config, tmp_path)
    where = POINTS[point](last)
    assert runs.run(mine, f"{where}:kill") == -9, f"{where} is never passed"
    assert runs.run(mine) == 0
    assert outcome(mine) == expected


def test_told_to_stop_in_the_step_that_ends_it(uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected, last = uninterrupted
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, f"step.after_log@{last}:term") == 75
    assert runs.run(mine) == 0
    assert outcome(mine) == expected


def test_the_export_of_a_stage_that_ended_early_is_made_again(uninterrupted: Whole, tmp_path: Path) -> None:
    """From the checkpoint of its end, which is not that of its last possible step."""
    config, expected, last = uninterrupted
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "stage.exported@2:kill") == -9
    shutil.rmtree(runs.run_dir(mine) / "stages" / "first")
    assert runs.run(mine) == 0
    assert any(f"stages/first: missing; making it again from step-{last:08d}" in line for line in said(mine))
    assert outcome(mine) == expected


def test_the_score_may_not_change_between_starts(uninterrupted: Whole, tmp_path: Path) -> None:
    config, _, _ = uninterrupted
    mine = elsewhere(config, tmp_path)
    assert runs.run(mine, "step.after_log@1:kill") == -9
    mine["stages"][0]["until"]["score"] = 0.5
    assert runs.run(mine) == 64
    assert "stages.0.until.score" in (tmp_path / "error.txt").read_text()


@pytest.mark.parametrize(("fault", "code"), [("step.before_update@4:kill", 76), ("stage.exported@2:kill", 0)])
def test_held_out_rows_of_a_stage_that_is_not_over_may_not_change(fault: str, code: int, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Once a later stage is saved nobody reads them any more."""
    world = Path(shutil.copytree(files[1], tmp_path / "world"))
    mine = recipe((files[0], world), tmp_path / "run")
    assert runs.run(mine, fault) == -9
    text = (world / "easy_test.jsonl").read_text()
    (world / "easy_test.jsonl").write_text(text.replace('"answer": "red"', '"answer": "blue"', 1))
    assert runs.run(mine) == code
    if code:
        message = (tmp_path / "run" / "error.txt").read_text()
        assert "easy_test.jsonl: 1 of 4 rows changed since the run began:" in message
        assert "row 'toy-test-000000' (" in message
        assert "gold answer changed" in message


def test_held_out_rows_that_cannot_be_read_stop_the_run_before_a_step(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Also where they are those of the evaluation, which alone would be reported as failed."""
    missing = {"path": "nowhere.jsonl"}
    mine = recipe(files, tmp_path, until={"source": missing}, eval={"source": missing, "at_start": False})
    mine["stages"][1]["answer_format"] = "answer_only"
    assert runs.run(mine) == 65
    assert "nowhere.jsonl" in (tmp_path / "error.txt").read_text()
    assert not (runs.run_dir(mine) / "metrics.jsonl").exists(), "before a step"


def test_a_score_that_is_not_reached_is_a_warning_and_costs_no_step(files: tuple[Path, Path], tmp_path: Path) -> None:
    config = recipe(files, tmp_path, until={"score": 1.0, "every": 2, "max_new_tokens": 1, "limit": 3})
    config["stages"][0]["steps"] = 3
    assert runs.run(config) == 0
    assert steps_of(config, "first") == [1, 2, 3]
    assert scores_of(config, "first") == {2: 0.0, 3: 0.0}, "the last step is looked at wherever it falls"
    line = "warning: first: held-out score 0.000 after 3 steps, which are all it has; 1 was asked for ('until')"
    assert line in said(config)
    assert len(read_records(runs.run_dir(config) / "eval" / "until" / "first.jsonl")) == 3, "the limit"
    assert (runs.run_dir(config) / "final" / "model.safetensors").is_file()


def test_a_stage_of_rewards_ends_at_its_first_look_where_any_score_will_do(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """With evaluations within stages beside it: of the same step, both are made."""
    config = runs.small_config(*tiny_files, tmp_path)
    look = {"source": {"path": "test.jsonl"}, "score": 0.0, "every": 2, "limit": 2, "max_new_tokens": 4}
    config["stages"][1]["until"] = look
    config["eval"] |= {"every": 2, "limit": 2, "max_new_tokens": 4, "at_start": False}
    assert runs.run(config) == 0
    assert steps_of(config, "rl") == [1, 2]
    assert list(scores_of(config, "rl")) == [2]
    assert scores_of(config, "sft") == {}
    assert [line["stage"] for line in metrics(config) if "eval/rows" in line] == ["sft@2", "sft", "rl@2", "rl"]
    assert any(line.startswith("rl: held-out score ") and line.endswith(" after 2 steps (0 was asked for)") for line in said(config))
    assert (runs.run_dir(config) / "final" / "model.safetensors").is_file()
    assert (runs.run_dir(config) / "report.html").is_file()


def test_two_ranks_end_with_the_step_of_one(uninterrupted: Whole, tmp_path: Path) -> None:
    config, expected, last = uninterrupted
    mine = elsewhere(config, tmp_path)
    launch(mine, 2, tmp_path)
    assert steps_of(mine, "first") == list(range(1, last + 1))
    assert steps_of(mine, "after") == [1, 2]
    assert scores_of(mine, "first") == scores_of(config, "first")
    assert outcome(mine)["state"]["global_step"] == expected["state"]["global_step"]
    loss = [[line["loss"] for line in metrics(one) if "loss" in line] for one in (config, mine)]
    assert loss[1] == pytest.approx(loss[0], rel=1e-4, abs=1e-5)
