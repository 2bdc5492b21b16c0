"""The command line: dispatch, exit codes, what is shown and what is not."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import vlmrl.extras.pages.view.view  # noqa: F401 (it takes names that a test replaces, and would keep the test's)
from tests.support.documents import parse_vlmrl
from vlmrl import cli
from vlmrl import errors as errors_module
from vlmrl.config.load import load
from vlmrl.errors import ConfigError, DataError, MediaError, Preempted, RowError, VlmrlError
from vlmrl.run import optional

ROOT = Path(__file__).parents[3]
RECIPE = "model: {path: somewhere}\nstages:\n  - {kind: sft, name: s, source: {path: a.jsonl}, steps: 1}\n"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def _run(*arguments: str, columns: int = 200) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vlmrl", *arguments])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return _run


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return path


def double(monkeypatch, name: str, **attributes: Any) -> None:
    """Put recording functions in the place of a module's own."""
    module = importlib.import_module(name)
    for attribute, value in attributes.items():
        monkeypatch.setattr(module, attribute, value)


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "vlmrl", "list", "--help"], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "python -m vlmrl list" in done.stdout
    wrong = subprocess.run([sys.executable, "-m", "vlmrl", "train", "no.yaml"], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert wrong.returncode == 64, wrong.stderr


def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['vlmrl', '--help']\n"
        "from vlmrl.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'yaml', 'av', 'PIL', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^│ (\w+) {2,}", done.stdout.partition("Commands")[2], re.M)
    assert shown == [*ELEVEN, "tools"]


def test_tools_are_those_that_fit_nowhere_else():
    assert set(COMMANDS["tools"].commands) == {"toy", "cache", "env", "thoughts", "pins", "pixels", "prompts"}


COMMANDS: dict[str, Any] = get_command(cli.app).commands  # pyright: ignore[reportAttributeAccessIssue]
ELEVEN = ("new", "check", "plan", "train", "eval", "compare", "study", "view", "serve", "publish", "list")
LIGHT = (
    ("list", "recipes"),
    ("list", "suites"),
    ("list", "suites", "gui"),
    ("list", "runs"),
    ("list", "caches"),
    ("list", "environments"),
    ("new", "mine", "--task", "gui"),
    ("new", "--list"),
    ("new", "--examples", "mine"),
    ("plan", "video_3b_1x80gb"),
    ("view", "--help"),
)
"""Commands that neither load a model nor name its methods: torch and transformers take seconds to import."""


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_commands_without_a_model_do_not_import_torch(arguments: tuple[str, ...], tmp_path):
    (tmp_path / "runs").mkdir()
    code = (
        "import atexit, sys\n"
        "told = lambda: print('loaded', {'torch', 'transformers', 'scipy', 'av', 'matplotlib', 'httpx'} & set(sys.modules))\n"
        "atexit.register(told)\n"
        "from vlmrl.cli import main\n"
        "main()\n"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded set()"


def test_suites_print_commands_that_can_be_copied(run):
    """However narrow the terminal is: a path that is cut, or broken into lines, is of no use."""
    code, out, _ = run("list", "suites", "gui")
    assert code == 0
    commands = [line.strip() for line in out.splitlines() if "prepare.py" in line]
    assert len(commands) > 4
    for command in commands:
        program, script, *arguments = shlex.split(command)
        assert program == "python"
        assert Path(script).is_file()
        assert "DATA_ROOT/" in " ".join(arguments)


def test_version(run):
    from vlmrl import __version__

    assert run("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [["tarin"], ["train"], ["list", "--jsn"], ["tools", "toy", "make"], ["tools", "toy", "make", "x", "--train", "0"]]
)
def test_usage_errors_exit_64(run, arguments):
    code, _, err = run(*arguments)
    assert code == 64
    assert err


def test_config_errors_list_every_problem_without_traceback(run, recipe):
    code, out, err = run("check", str(recipe), "run.sede=1", "eval.limit=0")
    assert code == 64
    assert "2 problems:" in err
    assert "run.sede: unknown key 'sede'; did you mean 'seed'?" in err
    assert "eval.limit: must be greater than 0, got int 0" in err
    assert "Traceback" not in err + out


def test_missing_recipe(run, tmp_path):
    code, _, err = run("train", str(tmp_path / "no.yaml"))
    assert code == 64
    assert "cannot be read: No such file or directory" in err


def error_classes() -> list[type[VlmrlError]]:
    return [e for e in vars(errors_module).values() if isinstance(e, type) and issubclass(e, VlmrlError)]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda k: k.__name__)
def test_every_error_ends_with_its_own_code(run, monkeypatch, tmp_path, kind):
    error = kind("reason", "text") if kind in (MediaError, RowError) else kind("text")

    def items_of(paths: list[Path], **more: bool) -> None:
        raise error

    double(monkeypatch, "vlmrl.extras.pages.documents.folder", items_of=items_of)
    code, _, err = run("view", str(tmp_path), "--save", str(tmp_path))
    assert code == kind.exit_code
    assert "text" in err
    assert "Traceback" not in err


def test_defects_keep_their_traceback(monkeypatch, tmp_path):
    def items_of(paths: list[Path], **more: bool) -> None:
        raise ZeroDivisionError("a defect")

    double(monkeypatch, "vlmrl.extras.pages.documents.folder", items_of=items_of)
    monkeypatch.setattr(sys, "argv", ["vlmrl", "view", str(tmp_path), "--save", str(tmp_path)])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_messages_cannot_drive_the_terminal(capsys):
    cli.show_error(DataError("row \x1b[2J\x1b]0;owned\x07 \u202eevil [red]not markup[/red]\nnext"))
    err = capsys.readouterr().err
    assert "\x1b[2J" not in err
    assert "\x07" not in err
    assert "\u202e" not in err
    assert "[red]not markup[/red]" in err


def test_check_without_data(run, recipe):
    code, out, _ = run("check", str(recipe), "--no-data", "run.seed=3")
    assert code == 0
    assert "recipe: ok" in out
    assert "methods: ok" in out
    assert "data: skipped" in out


def test_check_print_shows_each_value_with_its_origin(run, recipe):
    code, out, err = run("check", str(recipe), "--no-data", "--print", "run.seed=3")
    assert code == 0
    lines = [line.strip() for line in out.splitlines()]
    assert "seed: 3  # command line" in lines
    assert "name: run  # default" in lines
    line = recipe.read_text().splitlines().index(next(x for x in recipe.read_text().splitlines() if "somewhere" in x)) + 1
    assert f"path: somewhere  # {recipe}:{line}" in lines
    assert "recipe: ok" in err


def test_what_check_prints_is_a_recipe_that_gives_the_same_config(run, tmp_path):
    told = ["stages.rl.rewards=[{name: exact, label: a_b}]", "data.root='of: mine # here'"]
    code, out, err = run("check", "toy_video", "--no-data", "--print", *told)
    assert code == 0, err
    printed = tmp_path / "printed.yaml"
    printed.write_text(out)
    assert load(printed, []).text == load("toy_video", told).text


TOY = """
run: {name: t}
model: {path: toy}
media: {max_pixels: 4704, max_frames: 16}
data: {root: toy}
stages:
  - {kind: grpo, name: rl, source: {path: train.jsonl}, steps: 1, answer_format: think, rewards: [{name: temporal_iou}]}
eval: {source: {path: test.jsonl}}
toy:
  cache: CACHE
  world: {train: 4, validation: 1, test: 2, pretrain: 1}
  base: {kind: sft, name: base, source: {path: pretrain.jsonl}, steps: 1}
"""


def test_check_audits_the_embedded_world_without_training_its_model(run, tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(TOY.replace("CACHE", str(tmp_path / "cache")))
    code, out, err = run("check", str(path))
    assert code == 0, err + out
    assert "data: ok" in out
    cells = [[c.strip() for c in line.split("│")] for line in out.splitlines() if "train.jsonl" in line and "│" in line]
    assert cells[0][1:6] == ["train.jsonl", "think", "rl", "4", "4"]
    assert not list((tmp_path / "cache").glob("base-*"))

    rows = next((tmp_path / "cache").glob("world-*")) / "train.jsonl"
    bad = tmp_path / "data"
    bad.mkdir()
    (bad / "train.jsonl").write_text(rows.read_text())  # rows without their videos
    code, _, err = run("check", str(path), f"data.root={bad}", "eval.source=null")
    assert code == 65
    assert "none of 4 rows can be used" in err
    assert "missing" in err


def test_check_says_what_it_skips_without_torch(run, recipe, monkeypatch):
    def require_methods(*_: Any) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    double(monkeypatch, "vlmrl.methods", require_methods=require_methods, method_problems=require_methods, method_doubts=require_methods)
    code, out, _ = run("check", str(recipe))
    assert code == 0
    assert "skipped, torch is not installed" in out


def test_train_without_torch_says_what_to_do(run, recipe, monkeypatch):
    def missing(*_: Any) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    double(monkeypatch, "vlmrl.methods", require_methods=missing, method_problems=missing)
    code, _, err = run("train", str(recipe))
    assert code == 64
    assert "bash scripts/setup.sh" in err


def test_train_checks_methods_then_prepares_then_trains(run, recipe, monkeypatch):
    seen: list[Any] = []
    require_methods = partial(lambda seen, config: seen.append(("methods", config.run.seed)), seen)
    double(monkeypatch, "vlmrl.methods", require_methods=require_methods, method_problems=lambda *_: [])
    monkeypatch.setitem(optional.TOY, "prepare", lambda config, ui: seen.append("prepare") or "places")

    def train_from(loaded: Any, places: Any, ui: Any, **more: Any) -> Path:
        seen.append((loaded.config.run.seed, places, more))
        return recipe.parent

    double(monkeypatch, "vlmrl.run.start", train_from=train_from)
    code, out, err = run("train", str(recipe), "run.seed=5", "--profile", "3")
    assert (code, seen) == (0, [("methods", 5), "prepare", (5, "places", {"profile_steps": 3})]), err
    assert out.startswith(f"model:    {recipe.parent / 'final'}\n")


def test_train_passes_the_exit_code_on(run, recipe, monkeypatch):
    def train_from(*_: Any, **__: Any) -> None:
        raise Preempted("stopped by a signal")

    double(monkeypatch, "vlmrl.methods", require_methods=lambda config: {}, method_problems=lambda *_: [])
    monkeypatch.setitem(optional.TOY, "prepare", lambda config, ui: None)
    double(monkeypatch, "vlmrl.run.start", train_from=train_from)
    assert run("train", str(recipe))[0] == 75


def test_wrong_method_stops_train_before_anything_is_made(run, tmp_path, monkeypatch):
    path = tmp_path / "r.yaml"
    stage = "{kind: grpo, name: rl, source: {path: a}, steps: 1, rewards: [{name: temporal_iou}], advantage: {name: grop}}"
    path.write_text(f"model: {{path: m}}\nstages:\n  - {stage}\n")
    monkeypatch.setitem(optional.TOY, "prepare", lambda config, ui: pytest.fail("prepared"))
    code, _, err = run("train", str(path))
    assert code == 64
    assert "stages.rl.advantage.name: unknown advantage 'grop'; did you mean 'grpo'?" in err


def test_list_json_is_the_registry(run):
    from vlmrl.methods import registries

    code, out, _ = run("list", "--json")
    listed = json.loads(out)
    assert code == 0
    ours = {slot: [name for name in registry.names() if registry.get(name).ours] for slot, registry in registries().items()}
    assert {slot: [m["name"] for m in methods] for slot, methods in listed.items()} == ours
    grpo = next(m for m in listed["advantage"] if m["name"] == "grpo")
    assert grpo["summary"]
    assert all({"name", "type"} <= set(a) for a in grpo["arguments"])


def test_list_one_slot_and_a_misspelt_one(run):
    code, out, _ = run("list", "reward")
    assert code == 0
    assert "temporal_iou" in out
    assert "ppo_clip" not in out
    code, _, err = run("list", "rewrd")
    assert code == 64
    assert "nothing to list is called 'rewrd'; did you mean 'reward'?" in err


def test_toy_make_writes_a_world(run, tmp_path):
    out_dir = tmp_path / "world"
    sizes = ["--train", "3", "--validation", "1", "--test", "2", "--pretrain", "1", "--sft", "1"]
    code, out, err = run("tools", "toy", "make", str(out_dir), *sizes, "--seed", "1")
    assert code == 0, err
    assert f"{out_dir}: videos: " in out
    assert len((out_dir / "train.jsonl").read_text().splitlines()) == 3
    assert len(list(out_dir.rglob("*.mp4"))) == 8

    pictures = tmp_path / "pictures"
    code, out, err = run("tools", "toy", "make", str(pictures), *sizes, "--kind", "gui")
    assert code == 0, err
    assert f"{pictures}: images: " in out
    assert {json.loads(line)["task"] for line in (pictures / "train.jsonl").read_text().splitlines()} == {"toy_gui"}
    shell = tmp_path / "shell"
    code, out, err = run("tools", "toy", "make", str(shell), *sizes, "--kind", "shell")
    assert code == 0, err
    assert f"{shell}: videos: " in out
    assert len(list(shell.rglob("*.mp4"))) == 8
    assert {json.loads(line)["task"] for line in (shell / "train.jsonl").read_text().splitlines()} <= {"shell_start", "shell_end"}
    code, _, err = run("tools", "toy", "make", str(pictures), *sizes, "--kind", "audio")
    assert code == 64
    assert "unknown kind 'audio' (known: grounding, shell, " in err

    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    code, _, err = run("tools", "toy", "make", str(other), *sizes)
    assert code == 64
    assert "is not a toy world" in err
    assert (other / "thesis.txt").read_text() == "precious"


def test_check_of_the_machine_table_and_exit_code(run, monkeypatch):
    from vlmrl import doctor
    from vlmrl.extras.bridge import compat

    findings = [
        doctor.Finding(area="versions", item="torch", found="2.13.0"),
        doctor.Finding(area="optional", item="wandb", found="-", status="absent"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    monkeypatch.setattr(compat, "findings", list)
    code, out, _ = run("check")
    assert code == 0
    assert "2.13.0" in out
    findings.append(doctor.Finding(area="versions", item="av", found="-", status="problem", advice="pip install av"))
    code, _, err = run("check")
    assert code == VlmrlError.exit_code
    assert "av: pip install av" in err


def test_check_of_the_machine_breaks_no_word_on_a_narrow_terminal_and_lists_nothing_twice(run, monkeypatch):
    from vlmrl import doctor
    from vlmrl.extras.bridge import compat

    advice = "another math-verify does not fit, so it comes without its pins: pip install --no-deps lmms-eval==0.7.3"
    findings = [
        doctor.Finding(area="versions", item="pyarrow", found="21.0.0"),
        doctor.Finding(area="versions", item="huggingface-hub", found="1.3.2 (>=1.3,<2)"),
        doctor.Finding(area="optional", item="lmms-eval", found="-", status="absent", advice=advice),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    monkeypatch.setattr(compat, "findings", lambda: [types.SimpleNamespace(item="pyarrow", found="21.0.0", status="ok", advice="")])
    code, out, _ = run("check", columns=80)
    assert code == 0
    assert out.count("pyarrow") == 1
    assert all(len(line) <= 80 for line in out.splitlines())
    for word in [*advice.split(), *(word for f in findings for word in (f.area, f.item, *f.found.split()))]:
        assert word in out, word


def every_command(group: Any, name: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, one in group.commands.items():
        inner = f"{name} {key}".strip()
        found |= every_command(one, inner) if hasattr(one, "commands") else {inner: one}
    return found


def test_every_command_has_an_example_that_parses():
    commands = every_command(get_command(cli.app))
    assert len(commands) >= 17
    for name, command in commands.items():
        found = re.search(r"^Example: vlmrl (.+)$", inspect.cleandoc(command.callback.__doc__), re.M)
        assert found is not None, f"vlmrl {name} --help shows no example"
        assert found[1].startswith(name)
        parse_vlmrl(shlex.split(found[1]))


def test_eval_without_a_suite_lists_them(run, tmp_path):
    for arguments in (["eval", str(tmp_path)], ["eval", str(tmp_path), "--suite"]):
        code, _, err = run(*arguments)
        assert code == 64
        assert "suites: canary, click, counting, " in err
        assert "vlmrl list suites" in err


def test_exit_codes_in_the_help_are_those_of_the_errors(run):
    _, out, _ = run("--help")
    for kind in error_classes():
        assert f"{kind.exit_code} " in out
    assert ConfigError.exit_code == cli.USAGE == 64
