"""Names that become folders, records and keys of logs are checked before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from vlmrl.config.load import load, loaded
from vlmrl.config.names import key_problem, plain_problem, reserved_problem, same_names, stage_problem, task_problem
from vlmrl.config.schema import Config, validate
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.suite import load_suite
from vlmrl.run.session import Places
from vlmrl.run.start import train_from
from vlmrl.run.ui import Ui

GOOD = ["rl", "RL", "a", "7", "sft-2", "stage_1", "v1.2", "x" * 64, "basement", "final2", "temporal", "older", "tmp", "a.b.c"]
NO_PATH = ["", ".", "..", "a..b", "../escape", "../../out", "a/b", "/abs", "a\\b", "a b", " a", "ü", "x" * 65]
NO_PATH += ["a\n", "RL\nx", "\x1b[31m", "a\x00b"]
NO_FILE = [*NO_PATH, ".hidden", "-rf", "_x", "rl@3", "a:b", "a%b", "a*", "ａ"]
NO_STAGE = [*NO_FILE, "base", "final", "toy", "run", "Base", "FINAL", "tmp-sft", "old-step", "TMP-x"]


def recipe(folder: Path, *, stage: str = "rl", second: str = "warm", run: str = "one", label: str = "iou") -> Path:
    rollout = {"kind": "grpo", "source": {"path": "a"}, "steps": 1, "rewards": [{"name": "temporal_iou", "label": label}]}
    stages = [{"name": second, "kind": "sft", "source": {"path": "a"}, "steps": 1}, {"name": stage, **rollout}]
    path = folder / "r.yaml"
    path.write_text(yaml.safe_dump({"run": {"name": run}, "model": {"path": "m"}, "stages": stages}, sort_keys=False))
    return path


def refused(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, [])
    assert caught.value.exit_code == 64
    return caught.value.problems


@pytest.mark.parametrize("name", GOOD)
def test_plain_names_are_taken(tmp_path: Path, name: str) -> None:
    assert load(recipe(tmp_path, stage=name, run=name, label=name), []).config.stages[1].name == name
    assert plain_problem(name) is task_problem(name) is stage_problem(name) is reserved_problem(name) is None


@pytest.mark.parametrize("name", NO_STAGE)
def test_a_stage_of_a_bad_name_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    path = recipe(tmp_path, stage=name)
    (problem,) = refused(path)
    lines = path.read_text().splitlines()
    line = [number for number, text in enumerate(lines, start=1) if text.startswith("- name:")][1]
    assert problem.startswith(f"{path}:{line}: stages.")
    assert ".name: " in problem
    assert problem.isprintable(), "a name is shown so that it cannot write to the terminal"


@pytest.mark.parametrize("name", NO_STAGE)
def test_a_config_from_code_is_checked_as_well(tmp_path: Path, name: str) -> None:
    raw = yaml.safe_load(recipe(tmp_path, stage=name).read_text())
    if stage_problem(name) is not None:
        with pytest.raises(ValidationError, match="stages"):
            Config.model_validate(raw)
        return
    config = Config.model_validate(raw)
    assert [problem for problem in validate(config) if "reserved name" in problem]
    with pytest.raises(ConfigError, match="reserved name"):
        train_from(loaded(config), Places(model="m", data=tmp_path), Ui(quiet=True))


def test_the_toy_models_own_stage_may_have_a_name_that_runs_reserve() -> None:
    section = {"base": {"kind": "sft", "name": "base", "source": {"path": "a"}, "steps": 1}}
    stages = [{"kind": "sft", "name": "s", "source": {"path": "a"}, "steps": 1}]
    assert validate(Config.model_validate({"model": {"path": "toy"}, "data": {"root": "toy"}, "stages": stages, "toy": section})) == []


@pytest.mark.parametrize("name", [*NO_FILE, "tmp-x", "old-x"])
def test_a_run_of_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    (problem,) = refused(recipe(tmp_path, run=name))
    assert problem.startswith(f"{tmp_path / 'r.yaml'}:2: run.name: ")


@pytest.mark.parametrize("name", ["", "a/b", " a", "a\n", "\x1b[31m", "a\x00b", "x" * 65])
def test_a_reward_cannot_have_a_label_that_is_no_key(tmp_path: Path, name: str) -> None:
    (problem,) = refused(recipe(tmp_path, label=name))
    assert ".label: " in problem
    assert "cannot be a name in logs" in problem


def test_a_label_may_be_any_printable_text() -> None:
    assert [key_problem(name) for name in ("overlap (IoU)", "接地", "a:b", "100%")] == [None] * 4


@pytest.mark.parametrize(("first", "second"), [("rl", "rl"), ("rl", "RL"), ("Warm", "wARM")])
def test_two_stages_cannot_share_a_folder(tmp_path: Path, first: str, second: str) -> None:
    (problem,) = refused(recipe(tmp_path, second=first, stage=second))
    assert f"{second!r} is used twice, by stages 0 and 1" in problem
    assert problem.startswith(f"{tmp_path / 'r.yaml'}:")


def test_same_names_are_found_in_any_case() -> None:
    assert same_names(["a", "b", "A", "a", "c"]) == {2: 0, 3: 0}
    assert same_names(["ß", "SS"]) == {1: 0}


def test_a_bad_name_does_not_hide_other_problems(tmp_path: Path) -> None:
    path = recipe(tmp_path, stage="a/b", label="x/y")
    raw = yaml.safe_load(path.read_text())
    raw["stages"][1]["updates_per_step"] = 3
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    found = refused(path)
    assert [sum(word in problem for problem in found) for word in ("'a/b'", "'x/y'", "updates_per_step (3)")] == [1, 1, 1], found


@pytest.mark.parametrize("name", [*NO_PATH, "a@b@c", "@think", "x@../y"])
def test_a_task_of_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    assert task_problem(name) is not None
    task = {"id": name, "source": "a.jsonl", "answer_format": "think", "answer_type": "time_span", "max_new_tokens": 8}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"id": "s", "version": 1, "data_root": "d", "tasks": [task]}))
    with pytest.raises(ConfigError, match="is not a plain name"):
        load_suite(path)
    assert task_problem("mine@think_or_not") is None


@pytest.mark.parametrize("key", ["id", "dataset", "split"])
def test_a_suite_and_its_data_cannot_have_a_path_for_a_name(tmp_path: Path, key: str) -> None:
    prepare = {"dataset": "cvbench", "split": "test"}
    task = {"id": "t", "source": "a.jsonl", "answer_format": "think", "answer_type": "time_span", "max_new_tokens": 8, "prepare": prepare}
    suite = {"id": "s", "version": 1, "data_root": "d", "tasks": [task]}
    (suite if key == "id" else prepare)[key] = "x; rm -r ~"
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(suite, sort_keys=False))
    with pytest.raises(ConfigError, match=rf"s\.yaml:\d+: .*{key}: 'x; rm -r ~' is not a plain name"):
        load_suite(path)


def test_two_tasks_cannot_share_a_file(tmp_path: Path) -> None:
    task = {"source": "a.jsonl", "answer_format": "think", "answer_type": "time_span", "max_new_tokens": 8}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({"id": "s", "version": 1, "data_root": "d", "tasks": [{"id": "t", **task}, {"id": "T", **task}]}))
    with pytest.raises(ConfigError, match="id 'T' is used twice, by tasks 0 and 1"):
        load_suite(path)
