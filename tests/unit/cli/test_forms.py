"""Commands that took others in: `serve` asks and serves rollouts, `eval` imports, `plan` and `train` launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vlmrl.cli import app
from vlmrl.cli import eval as evaluation
from vlmrl.cli import train as training
from vlmrl.errors import ConfigError
from vlmrl.extras.scale import command as scale
from vlmrl.extras.serve import ask as asking
from vlmrl.extras.serve import command as serving

RECIPE = "model: {path: somewhere}\nstages:\n  - {kind: sft, name: s, source: {path: a.jsonl}, steps: 1}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return path


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words: object) -> str:
    done = run(*words)
    assert isinstance(done.exception, ConfigError), done.output
    return str(done.exception)


# ---- serve -------------------------------------------------------------------------------------------------------------


def test_serve_asks_a_question_and_serves_nothing(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(asking, "answer", lambda *given, **more: asked.append((given, more)))
    media = ["--video", "b.mp4", "--image", "a.png"]
    assert run("serve", "runs/x", "--ask", "when?", *media, "--json", "--frame", "pixel", "--seed", 3).exit_code == 0
    assert run("serve", "runs/x", "--ask", "-", "--recipe", "toy_video").exit_code == 0
    (given, more), (lines, _) = asked
    how = {"answer_type": None, "answer_format": None, "frame": "pixel", "max_new_tokens": None}
    assert given == (Path("runs/x"), "when?", [("image", Path("a.png")), ("video", Path("b.mp4"))], None, how, None)
    assert more == {"as_json": True, "sampling": (0.0, 3), "device": "auto", "dtype": "auto"}
    assert lines[:4] == (Path("runs/x"), None, [], "toy_video")


def test_serve_hands_rollouts_on(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(serving, "extra", lambda name: lambda *given, **more: asked.append((name, given, more)))
    assert run("serve", "--rollouts", "r.yaml", "a.b=1", "c=2", "--listen", "h:1", "--stage", "rl").exit_code == 0
    assert run("serve", "--rollouts", "r.yaml").exit_code == 0
    name, given, more = asked[0]
    assert name == "vlmrl.extras.vllm.command.rollout_server"
    assert given == ("r.yaml", ["a.b=1", "c=2"])
    assert more == {"listen": "h:1", "token_file": None, "stage": "rl", "print_": False}
    assert asked[1][1:] == (("r.yaml", []), {"listen": "127.0.0.1:7000", "token_file": None, "stage": None, "print_": False})


def test_serve_hands_a_teacher_on(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(serving, "extra", lambda name: lambda *given, **more: asked.append((name, given, more)))
    assert run("serve", "--teacher", "m", "--token-file", "t", "--dtype", "bfloat16", "--", "--max-model-len", "9").exit_code == 0
    ((name, given, more),) = asked
    assert name == "vlmrl.extras.vllm.command.teacher_server"
    assert given == ("m", ["--max-model-len", "9"])
    assert more == {"listen": "127.0.0.1:7000", "token_file": Path("t"), "device": "auto", "dtype": "bfloat16", "print_": False}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which model?"),
        (["--ask", "what?"], "which model?"),
        (["m", "--image", "a.png"], "--image: only with --ask, --rollouts or --teacher"),
        (["m", "--listen", "h:1"], "--listen: only with --ask, --rollouts or --teacher"),
        (["m", "--ask", "what?", "--port", "0"], "--port: not with --ask"),
        (["m", "--ask", "what?", "--stage", "rl"], "--stage: not with --ask"),
        (["m", "--ask", "what", "is", "it?"], "is: --ask takes one question"),
        (["--rollouts", "r.yaml", "--json"], "--json: not with --rollouts"),
        (["--teacher", "m", "--stage", "rl"], "--stage: not with --teacher"),
        (["--rollouts", "r.yaml", "--recipe", "x"], "--recipe: not with --rollouts"),
        (["m", "--ask", "what?", "--out", "a.png"], "--out draws on a picture or a video"),
    ],
)
def test_what_does_not_go_with_serve(words: list[str], said: str):
    assert said in refused("serve", *words)


# ---- eval --------------------------------------------------------------------------------------------------------------


def test_eval_hands_results_of_another_harness_on(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    monkeypatch.setattr(evaluation, "extra", lambda name: lambda *given, **more: asked.append((name, given, more)))
    assert run("eval", "--import", "x.tsv", "--kind", "vlmevalkit", "--out", "o", "--join", "index", "--task", "t").exit_code == 0
    ((name, given, more),) = asked
    assert name == "vlmrl.extras.bridge.importers.command.import_"
    assert given == (Path("x.tsv"), "vlmevalkit", Path("o"))
    told = {"task": ["t"], "model": None, "answer_format": None, "version": None, "primary": None}
    assert more == {"rows": None, "join": "index", "plugins": [], **told}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which model?"),
        (["m", "--import", "x.tsv"], "m: --import reads results that are there"),
        (["--import", "x.tsv", "--suite", "gui"], "--suite: --import reads results that are there"),
        (["--import", "x.tsv", "--temperature", "1"], "--temperature: --import reads results that are there"),
        (["--import", "x.tsv", "--out", "o"], "--import: give also --kind lmms-eval or vlmevalkit"),
        (["--import", "x.tsv", "--kind", "vlmevalkit"], "--import: give also --out"),
        (["--import", "x.tsv", "--kind", "vlmevalkit", "--out", "o", "--join", "row"], "--join: expected id or index"),
        (["--import", "x.tsv", "--kind", "lmms-eval", "--out", "o", "--task", "a", "--task", "b"], "--task: --import reads one task"),
        (["m", "--suite", "gui", "--kind", "lmms-eval"], "--kind: belongs to --import"),
    ],
)
def test_what_does_not_go_with_import(words: list[str], said: str):
    assert said in refused("eval", *words)


# ---- plan and train ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "gpus", "nodes"),
    [
        ([], 1, 1),
        (["--gpus", "4"], 4, 1),
        (["--gpus", "16"], 8, 2),
        (["--gpus", "8", "--gpus-per-node", "4"], 4, 2),
        (["--gpus", "4", "--nodes", "3"], 4, 3),
    ],
)
def test_plan_prints_the_line_that_starts_it(recipe: Path, words: list[str], gpus: int, nodes: int):
    done = run("plan", recipe, "run.seed=1", "--launch", *words)
    assert done.exit_code == 0, done.output
    (line,) = done.output.splitlines()
    assert f"--nproc-per-node {gpus} " in line
    assert (f"--nnodes {nodes}" in line) == (nodes > 1)
    assert line.endswith(f"-m vlmrl train {recipe} run.seed=1")


def test_plan_counts_the_gpus_of_all_machines(recipe: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []

    def heaviest(*given: Any, **more: Any) -> None:
        asked.append((more["gpus"], more["gpus_per_node"]))
        raise ConfigError("enough")

    monkeypatch.setattr("vlmrl.extras.plan.recipe.heaviest", heaviest)
    for words in (["--gpus", "4", "--nodes", "3"], ["--gpus", "16"]):
        assert refused("plan", "video_3b_1x80gb", *words) == "enough"
    assert asked == [(12, 4), (16, 8)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--launch", "--with", "mpirun"], "--with: expected one of torchrun, accelerate, slurm, jobset, skypilot, got 'mpirun'"),
        (["--launch", "--gpus", "12"], "--gpus: 12 are not whole machines of 8"),
        (["--with", "slurm"], "--with, --host, --restarts, --servers and --teachers belong to --launch"),
        (["--servers", "4x2"], "--with, --host, --restarts, --servers and --teachers belong to --launch"),
        (["--launch", "--servers", "4x2"], "--servers, --teachers: torchrun starts one program; take --with slurm, jobset, skypilot"),
        (["--launch", "run.sede=1"], "did you mean 'seed'?"),
    ],
)
def test_lines_that_cannot_be_printed(recipe: Path, words: list[str], said: str):
    assert said in refused("plan", recipe, *words)


def test_train_starts_ranks_where_gpus_are_named(recipe: Path, monkeypatch: pytest.MonkeyPatch):
    jobs: list[Any] = []
    monkeypatch.setattr(scale, "_run", lambda job, loaded: jobs.append((job, loaded.config.run.seed)))
    assert run("train", recipe, "run.seed=3", "--gpus", 2, "--nodes", 2, "--host", "first", "--restarts", 1).exit_code == 0
    ((job, seed),) = jobs
    assert (job.gpus, job.nodes, job.host, job.restarts, seed) == (2, 2, "first", 1, 3)
    assert job.train == (str(recipe), "run.seed=3")
    assert "--nodes: which machine is the first?" in refused("train", recipe, "--gpus", 2, "--nodes", 2)
    assert len(jobs) == 1


def test_train_alone_stays_in_this_process(recipe: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    monkeypatch.setattr(training, "_train", lambda *given: seen.append(given))
    assert run("train", recipe, "--profile", 2).exit_code == 0
    assert seen == [(recipe, None, 2)]
    assert "--profile traces one run" in refused("train", recipe, "--profile", 2, "--gpus", 1)
