"""Names that commands had: each says the new one on stderr and does what it did; the help shows none of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from vlmrl import cli
from vlmrl.cli.old_names import OLD, apart

Run = Callable[..., tuple[int, str, str]]
COMMANDS: Any = get_command(cli.app)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", *arguments])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


def line(old: str, *args: str) -> list[str]:
    """The words that an old line becomes."""
    return COMMANDS._line(OLD[old], list(args))


def test_every_old_command_is_there_and_hidden_from_the_help(run: Run):
    assert set(OLD) >= {"init", "examples", "ask", "runs", "report", "suites", "import", "launch", "rollout-server", "conform", "thoughts"}
    assert set(OLD) >= {"doctor", "toy", "cache", "env"}
    for name, moved in OLD.items():
        assert moved.into[0] in COMMANDS.commands or moved.into == ("new",)
        assert name not in COMMANDS.commands or COMMANDS.commands[name].hidden
    code, out, _ = run("--help")
    assert code == 0
    assert not [name for name in OLD if f"│ {name} " in out]


@pytest.mark.parametrize(
    ("old", "args", "now"),
    [
        ("init", "mine --task gui", "new mine --task gui"),
        ("examples", "", "new --examples examples"),
        ("examples", "here", "new --examples here"),
        ("runs", "elsewhere --json", "list runs elsewhere --json"),
        ("suites", "gui --data-root /data", "list suites gui --data-root /data"),
        ("report", "runs/x", "view runs/x --save runs/x"),
        ("ask", "runs/x --video a.mp4 what? --json", "serve runs/x --ask what? --video a.mp4 --json"),
        ("ask", "--image a.png runs/x", "serve runs/x --ask - --image a.png"),
        ("ask", "runs/x --help", "serve --help"),
        ("import", "--kind lmms-eval logs --out=o", "eval --import logs --kind lmms-eval --out=o"),
        ("rollout-server", "--stage rl r.yaml run.seed=1", "serve --rollouts r.yaml run.seed=1 --stage rl"),
        ("launch", "r.yaml --gpus 8 --with slurm run.seed=1", "plan r.yaml --gpus 8 --with slurm run.seed=1 --launch"),
        ("launch", "r.yaml --gpus 8 --run", "train r.yaml --gpus 8"),
        ("launch", "--run r.yaml --nodes 2 --host h", "train r.yaml --nodes 2 --host h --gpus 1"),
        ("conform", "qwen3_5 --tiny --only P1", "check qwen3_5 --tiny --only P1"),
        ("doctor", "", "check"),
        ("doctor", "model", "check model --machine"),
        ("thoughts", "ton out.jsonl --check", "tools thoughts ton out.jsonl --check"),
        ("toy", "make /tmp/w --train 3", "tools toy make /tmp/w --train 3"),
        ("cache", "list --json", "list caches --json"),
        ("cache", "clean --all", "tools cache clean --all"),
        ("env", "list --plugin p", "list environments --plugin p"),
        ("env", "play toy_desk out --episodes 4", "tools env play toy_desk out --episodes 4"),
    ],
)
def test_an_old_line_becomes_the_new_one_which_parses(old: str, args: str, now: str):
    words = line(old, *args.split())
    assert words == now.split()
    if words[0] == "new" or "--help" in words:
        return
    command: Any = COMMANDS
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(old, words)


def test_flags_take_no_value_and_options_take_one():
    serve = COMMANDS.commands["serve"].params
    assert apart(["m", "--json", "q", "--video", "v", "--out=o.png"], serve) == (["m", "q"], ["--json", "--video", "v", "--out=o.png"])
    assert apart(["--video"], serve) == ([], ["--video"])  # the command itself says what is missing


def made(path: Path) -> Path:
    """A run of which nothing is there but its recipe."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(json.dumps({"stages": [{"name": "rl", "steps": 2}], "model": {"path": "m"}, "run": {"seed": 0}}))
    (path / "run.json").write_text("{}")
    return path


def test_they_say_the_new_name_and_do_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    made(tmp_path / "runs" / "one")
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: {path: somewhere}\nstages:\n  - {kind: sft, name: s, source: {path: a.jsonl}, steps: 1}\n")
    done = {
        ("runs",): "runs/one",
        ("suites",): "toy_video",
        ("cache", "list"): "in ~/.cache/vlmrl",
        ("env", "list"): "toy_desk: ",
        ("report", "runs/one"): "runs/one/report.html",
        ("launch", "r.yaml", "--gpus", "2"): "torchrun --standalone --nproc-per-node 2",
        ("toy", "make", "w", "--train", "1", "--validation", "1", "--test", "1", "--pretrain", "1", "--sft", "1"): "w: videos: ",
    }
    for words, said in done.items():
        code, out, err = run(*words)
        assert code == 0, err
        assert said in out, words
        assert err.splitlines()[0].startswith(f"'vlmrl {words[0]}' is now 'vlmrl ")
        assert len([one for one in err.splitlines() if "is now" in one]) == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["ask", "none", "what?"], 64, "none"),
        (["import", "none.tsv", "--kind", "nothing", "--out", "o"], 64, "unknown kind 'nothing'"),
        (["rollout-server", "none.yaml"], 64, "none.yaml: cannot be read"),
        (["conform", "nothing", "--tiny"], 64, "nothing"),
        (["launch", "r.yaml", "--run", "--nodes", "2"], 64, "r.yaml: cannot be read"),
        (["thoughts", "none.yaml", "t.jsonl"], 64, "none.yaml: cannot be read"),
    ],
)
def test_what_was_wrong_is_wrong_under_the_new_name(run: Run, words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    found, _, err = run(*words)
    assert found == code, err
    assert err.startswith(f"'vlmrl {words[0]}' is now ")
    assert said in err


def test_a_misspelt_command_is_still_helped(run: Run):
    code, _, err = run("trian")
    assert code == 64
    assert "Did you mean 'train'" in err
