"""`vlmrl compare RUN RUN`: of a run the last evaluation is taken, and which one that is, is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.evals.test_evals_compare import A10, B10, choice, save
from vlmrl.cli import app
from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.paired import Incomparable
from vlmrl.evals.score.runfiles import evaluation_at
from vlmrl.extras.seeds.published import beside_published


def make_run(path: Path, values: list[int], *, order: tuple[str, ...] = ("base", "sft", "rl"), suite: tuple[str, ...] = ()) -> Path:
    """A run whose last evaluation has these values; in the others every answer is wrong."""
    (path / "eval").mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump({"stages": [{"name": "sft"}, {"name": "rl"}]}))
    if order:
        (path / "eval" / "order.json").write_text(json.dumps(order))
    for name in order:
        rows = choice(values if name == order[-1] else [0] * len(values), model=name)
        (path / "eval" / f"{name}.jsonl").write_bytes(b"".join(r.line() for r in rows))
    for name in suite:
        rows = choice(values if name == suite[-1] else [0] * len(values), model=name)
        (path / "eval" / "suite" / name).mkdir(parents=True)
        (path / "eval" / "suite" / name / "quiz.jsonl").write_bytes(b"".join(r.line() for r in rows))
    return path


@pytest.mark.parametrize("inside", ["", "eval"])
def test_two_runs(tmp_path: Path, inside: str):
    a, b = make_run(tmp_path / "a", A10), make_run(tmp_path / "b", B10)
    result = compare_folders(a / inside, b / inside)
    (task,) = result.tasks
    assert (task.gaps["exact"].a, task.gaps["exact"].b) == (0.7, 0.8)
    assert result.models == ("a", "b")
    assert result.paths == (str(a / "eval" / "rl.jsonl"), str(b / "eval" / "rl.jsonl"))


def with_environment(run: Path, version: str = "1.0", **media: object) -> Path:
    (run / "environment.json").write_text(json.dumps({"vlmrl": version}))
    recipe = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(recipe | {"media": {"fps": 2.0, "workers": 0, **media}}))
    return run


def test_program_and_media_settings_of_runs_are_compared(tmp_path: Path):
    """A file of records alone says neither, and that is told; a run says both."""
    a, b = make_run(tmp_path / "a", A10), make_run(tmp_path / "b", B10)
    bare = compare_folders(a, b).warnings
    assert bare == tuple(
        f"{run / 'eval' / 'rl.jsonl'} is of no run and has no summary.json beside it: program version and media settings are unchecked"
        for run in (a, b)
    )
    with_environment(a)
    assert compare_folders(with_environment(b, workers=4), a).warnings == ()
    with pytest.raises(Incomparable, match=r"media\.fps differs on 10 samples \(4\.0 and 2\.0\)"):
        compare_folders(with_environment(b, fps=4.0), a)
    with pytest.raises(Incomparable, match=r"the version of vlmrl differs on 10 samples \(2\.0 and 1\.0\)"):
        compare_folders(with_environment(b, "2.0"), a)
    (a / "environment.json").write_text("{}")
    with pytest.raises(StorageError, match=r"environment\.json: not what a run writes"):
        compare_folders(a, b)


def test_stages_of_other_names_and_a_folder_on_one_side(tmp_path: Path):
    a, b = make_run(tmp_path / "a", A10, order=("base", "grpo@40")), make_run(tmp_path / "b", B10)
    assert [task.task for task in compare_folders(a, b).tasks] == ["quiz"]
    folder = save(tmp_path / "f", {"rl": choice(B10, model="served")}, model="served")
    (task,) = compare_folders(b, folder).tasks
    assert (task.task, task.gaps["exact"].difference) == ("rl", 0.0)


def test_a_run_that_asks_only_a_suite(tmp_path: Path):
    a, b = (make_run(tmp_path / n, v, order=(), suite=("base", "rl@20", "rl@100", "rl")) for n, v in (("a", A10), ("b", B10)))
    assert evaluation_at(a) == a / "eval" / "suite" / "rl"
    (task,) = compare_folders(a, b / "eval").tasks
    assert (task.task, task.gaps["exact"].a, task.gaps["exact"].b) == ("quiz", 0.7, 0.8)
    early = make_run(tmp_path / "c", A10, order=(), suite=("base", "sft", "rl@20", "rl@100"))
    assert evaluation_at(early).name == "rl@100"


def test_what_is_no_run_stays_what_it_is(tmp_path: Path):
    folder = save(tmp_path / "eval", {"quiz": choice(A10)})
    assert evaluation_at(folder) == folder
    assert evaluation_at(tmp_path / "none") == tmp_path / "none"
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=r"no summary\.json; give a folder that `vlmrl eval` wrote to its end, a run, or a records file"):
        compare_folders(tmp_path / "empty", folder)


def test_a_run_without_evaluations_and_a_damaged_list(tmp_path: Path):
    run = make_run(tmp_path / "a", A10, order=())
    with pytest.raises(ConfigError, match=r"the run has no evaluation yet; a recipe asks for them with eval\.source or eval\.suite"):
        compare_folders(run, run)
    (run / "eval" / "order.json").write_text("{}")
    with pytest.raises(StorageError, match=r"order\.json: not a list of evaluations"):
        evaluation_at(run)


@pytest.mark.parametrize("inside", ["", "/eval"])
def test_the_first_command_of_the_page_says_which_file_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str):
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/base"), A10)
    make_run(Path("runs/new"), [0] * 10)
    written = (Path(__file__).parents[3] / "docs" / "compare.md").read_text(encoding="utf-8")
    command = next(line for line in written.splitlines() if line.startswith("    vlmrl compare "))
    assert "runs/base runs/new" in command
    done = CliRunner().invoke(app, command.replace("base ", f"base{inside} ").replace("new ", f"new{inside} ").split()[1:])
    assert done.exit_code == 1, done.output
    assert f"runs/base{inside}: its last evaluation is compared, runs/base/eval/rl.jsonl" in done.output
    assert f"runs/new{inside}: its last evaluation is compared, runs/new/eval/rl.jsonl" in done.output
    assert sorted(file.name for file in Path("comparison").iterdir()) == ["comparison.json", "comparison.md"]


def test_printed_figures_beside_a_run_are_looked_for_in_its_evaluation(tmp_path: Path):
    with pytest.raises(StorageError, match=r"none of its tasks \(quiz\) quotes a printed figure"):
        beside_published(make_run(tmp_path / "a", A10))
