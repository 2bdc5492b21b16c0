"""The shell scripts: arguments, messages and the command that they run. Nothing is installed here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.documents import parse_vlmrl

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")


def bash(script: Path, *arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "VLMRL_PYTHON")}
    return subprocess.run(
        [str(BASH), str(script), *arguments], capture_output=True, text=True, timeout=120, cwd=cwd, env=clean | environment, check=False
    )


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of the scripts in which setup does nothing and the interpreter prints its arguments, one per line."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    (tmp_path / "scripts" / "setup.sh").write_text("exit 0\n")
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda p: p.name)
def test_scripts_parse(script):
    assert subprocess.run([str(BASH), "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize(
    "name", ["setup.sh", "test.sh", "train_video.sh", "eval.sh", "launch.sh", "reproduce.sh", "pins.sh", "matrix.sh", "walk.sh", "docs.sh"]
)
def test_help(name):
    done = bash(SCRIPTS / name, "--help")
    assert done.returncode == 0
    assert name in done.stdout
    assert "set -euo" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m"], "--model needs --data"),
        (["--data", "d.jsonl"], "--data needs --model"),
        (["--model", "m", "--data", "no/such.jsonl"], "--data: no file 'no/such.jsonl'"),
        (["--model"], "--model needs a value"),
        (["--modle", "m"], "unknown option '--modle'"),
        (["stray"], "unexpected argument 'stray'"),
        (["--gpus", "two"], "--gpus: expected a number from 1, got 'two'"),
        (["--gpus", "0"], "--gpus: expected a number from 1, got '0'"),
        (["--nodes", "x"], "--nodes: expected a number from 1, got 'x'"),
        (["--nodes", "2"], "--nodes needs --host"),
        (["--host"], "--host needs a value"),
    ],
)
def test_train_video_usage_errors_are_one_line(checkout, arguments, message):
    done = bash(checkout / "scripts" / "train_video.sh", *arguments)
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_media_root_must_exist(checkout):
    (checkout / "rows.jsonl").write_text("{}\n")
    done = bash(checkout / "scripts" / "train_video.sh", "--model", "m", "--data", "rows.jsonl", "--media-root", "nowhere", cwd=checkout)
    assert done.returncode == 64
    assert "--media-root: no folder 'nowhere'" in done.stderr


def test_train_video_without_arguments_runs_the_embedded_world(checkout):
    done = bash(checkout / "scripts" / "train_video.sh", "run.seed=3", VLMRL_PYTHON=str(checkout / "python"))
    assert done.stdout.splitlines() == ["-m", "vlmrl", "train", str(checkout / "configs/recipes/toy_video.yaml"), "run.seed=3"]


@pytest.mark.parametrize("name", ["train_video.sh", "test.sh"])
def test_bytecode_is_kept_where_a_container_forbids_it(name, checkout):
    """Else every process compiles torch and transformers anew."""
    (checkout / "python").write_text('#!/usr/bin/env bash\nprintf "forbids: %s\\n" "${PYTHONDONTWRITEBYTECODE-nothing}"\n')
    done = bash(checkout / "scripts" / name, VLMRL_PYTHON=str(checkout / "python"), PYTHONDONTWRITEBYTECODE="1")
    assert set(done.stdout.splitlines()) == {"forbids: nothing"}, done.stderr


def test_train_video_takes_another_recipe_of_the_generated_worlds(checkout):
    recipe = checkout / "configs/recipes/toy_grounding.yaml"
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text("run: {}\n")
    script = checkout / "scripts" / "train_video.sh"
    done = bash(script, "toy_grounding", "run.seed=3", VLMRL_PYTHON=str(checkout / "python"))
    assert done.stdout.splitlines() == ["-m", "vlmrl", "train", str(recipe), "run.seed=3"]
    for arguments, message in (
        (["toy_nothing"], "no recipe configs/recipes/toy_nothing.yaml"),
        (["toy_grounding", "toy_grounding"], "two recipes: 'toy_grounding' and 'toy_grounding'"),
        (["toy_grounding", "--model", "m"], "'toy_grounding' is a recipe with a model and data of its own"),
    ):
        done = bash(script, *arguments)
        assert done.returncode == 64
        assert message in done.stderr


def test_train_video_with_data_becomes_overrides_that_load(checkout, tmp_path):
    from vlmrl.config.load import load

    folder = checkout / "it's data: here"
    (folder / "videos").mkdir(parents=True)
    (folder / "rows.jsonl").write_text("{}\n")
    arguments = ["--model", "my/model", "--data", f"{folder.name}/rows.jsonl", "--media-root", f"{folder.name}/videos", "run.seed=3"]
    done = bash(checkout / "scripts" / "train_video.sh", *arguments, cwd=checkout, VLMRL_PYTHON=str(checkout / "python"))
    words = done.stdout.splitlines()
    assert words[:3] == ["-m", "vlmrl", "train"]
    cfg = load(ROOT / "configs" / "recipes" / Path(words[3]).name, words[4:]).config
    assert cfg.model.path == "my/model"
    assert Path(cfg.data.root) == folder
    for stage in cfg.stages:
        assert Path(cfg.data.root) / stage.source.path == folder / "rows.jsonl"
        assert Path(cfg.data.root) / stage.source.media_root == folder / "videos"
    assert cfg.run.seed == 3


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--gpus", "4"], {"gpus": 4, "nodes": 1, "host": ""}),
        (["--gpus", "8", "--nodes", "2", "--host", "10.0.0.1:29500"], {"gpus": 8, "nodes": 2, "host": "10.0.0.1:29500"}),
        (["--nodes", "2", "--host", "first"], {"gpus": 1, "nodes": 2, "host": "first"}),
    ],
)
@pytest.mark.parametrize("mine", [True, False])
def test_train_video_on_several_gpus_or_machines_is_launched(checkout, arguments, options, mine):
    """With a model and rows of one's own, and with a generated world; the words parse as the command's."""
    (checkout / "rows.jsonl").write_text("{}\n")
    given = ["--model", "m", "--data", "rows.jsonl"] if mine else []
    done = bash(
        checkout / "scripts" / "train_video.sh", *arguments, *given, "run.seed=3", cwd=checkout, VLMRL_PYTHON=str(checkout / "python")
    )
    words = done.stdout.splitlines()
    assert words[:3] == ["-m", "vlmrl", "train"]
    found = parse_vlmrl(words[2:])
    assert {name: found[name] for name in options} == options
    assert Path(found["recipe"]).name == ("video_tempsamp_3b.yaml" if mine else "toy_video.yaml")
    assert found["overrides"][-1] == "run.seed=3"


def test_launch_passes_its_arguments_on(checkout):
    given = ["--gpus", "8", "recipe.yaml", "run.seed=3"]
    done = bash(checkout / "scripts" / "launch.sh", *given, cwd=checkout, VLMRL_PYTHON=str(checkout / "python"))
    assert done.stdout.splitlines() == ["-m", "vlmrl", "train", *given]


def test_eval_takes_the_toy_suite_unless_told_otherwise(checkout):
    (checkout / "model").mkdir()

    def words(*arguments: str) -> list[str]:
        done = bash(checkout / "scripts" / "eval.sh", *arguments, cwd=checkout, VLMRL_PYTHON=str(checkout / "python"))
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert words("model") == ["-m", "vlmrl.cli", "eval", "model", "--suite", "toy_video"]
    assert words("model", "--suite", "gui", "--limit", "4") == ["-m", "vlmrl.cli", "eval", "model", "--suite", "gui", "--limit", "4"]
    assert words("model", "--suite=gui")[-1] == "--suite=gui"


@pytest.mark.parametrize(("arguments", "message"), [([], "which checkpoint?"), (["nowhere"], "nowhere: no such checkpoint")])
def test_eval_usage_errors_are_one_line(checkout, arguments, message):
    done = bash(checkout / "scripts" / "eval.sh", *arguments, cwd=checkout)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (64, "", 1)
    assert message in done.stderr


def test_gpu_check_passes_its_arguments_on(checkout):
    script = checkout / "scripts" / "gpu_check.sh"
    done = bash(script, "--quick", "--only", "attention", VLMRL_PYTHON=str(checkout / "python"))
    assert (done.returncode, done.stdout.split()) == (0, ["-m", "benchmarks.gpu_check", "--quick", "--only", "attention"])
    assert "bash scripts/gpu_check.sh [--only NAME ...]" in bash(script, "--help").stdout


def test_setup_refuses_unknown_arguments_and_bad_interpreters():
    assert "unknown argument 'prod'" in bash(SCRIPTS / "setup.sh", "prod").stderr
    done = bash(SCRIPTS / "setup.sh", VLMRL_PYTHON="/no/such/python")
    assert done.returncode == 64
    assert "VLMRL_PYTHON=/no/such/python is not an executable" in done.stderr


def test_setup_refuses_an_old_python(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/usr/bin/env bash\nexit 1\n")  # what `sys.exit(sys.version_info < (3, 10))` gives there
    old.chmod(0o755)
    done = bash(SCRIPTS / "setup.sh", VLMRL_PYTHON=str(old))
    assert done.returncode == 64
    assert "is older than Python 3.10" in done.stderr


def test_constraints_agree_with_the_declared_ranges():
    """A pin outside pyproject's range would make setup fail on a clean machine only."""
    from packaging.requirements import Requirement

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [Requirement(r) for r in [*project["dependencies"], *extras["dev"], *extras["lmms"]]]
    for own in [r for r in declared if r.name == project["name"]]:  # `vlmrl[lora]` of an extra stands for what that one holds
        declared += [Requirement(r) for extra in own.extras for r in extras[extra]]
    declared = [r for r in declared if r.name != project["name"]]
    for name, whole in (("cpu-py311.txt", True), ("cpu-py310.txt", False), ("gpu.txt", True)):
        lines = [line for line in (ROOT / "constraints" / name).read_text().splitlines() if line and not line.startswith("#")]
        pins: dict[str, list[Requirement]] = {}
        for pin in map(Requirement, lines):
            assert str(pin.specifier).startswith("=="), pin
            pins.setdefault(pin.name.lower().replace("_", "-"), []).append(pin)
        for requirement in declared:
            found = pins.get(requirement.name.lower().replace("_", "-"), [])
            assert found or not whole, f"{name}: {requirement.name} is not pinned"
            for pin in found:
                assert requirement.specifier.contains(str(pin.specifier)[2:]), f"{name}: {pin} is outside {requirement}"
    torch = next(line for line in (ROOT / "constraints" / "cpu-py311.txt").read_text().splitlines() if line.startswith("torch=="))
    assert torch in (SCRIPTS / "setup.sh").read_text()


def test_the_trackers_fit_their_pins():
    from packaging.requirements import Requirement

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "constraints" / "trackers.txt").read_text().splitlines() if not line.startswith("#")]
    pins = [Requirement(line) for line in lines]
    for wanted in map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["trackers"], "pytest", "hypothesis"]):
        found = [pin for pin in pins if pin.name.lower().replace("_", "-") == wanted.name.lower().replace("_", "-")]
        assert found, f"{wanted.name} is not pinned"
        for pin in found:
            assert wanted.specifier.contains(str(pin.specifier)[2:]), f"{pin} is outside {wanted}"


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_what_was_tested_is_within_the_declared_range(package):
    """The newest version of a row is the newest that an installation without pins takes, up to patches of it."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    rows = {row["name"]: row for row in json.loads((ROOT / "constraints" / "tested.json").read_text())}
    declared = {r.name: r for r in map(Requirement, re.findall(r'^  "([\w-]+[<>=][^"]*)",$', (ROOT / "pyproject.toml").read_text(), re.M))}
    assert all(declared[package].specifier.contains(row[package]) for row in rows.values())
    newest = max(Version(row[package]) for row in rows.values())
    assert not declared[package].specifier.contains(f"{newest.major}.{newest.minor + 1}.0")
    pinned = re.findall(rf"^{package}==([\d.]+)$", (ROOT / "constraints" / "cpu-py311.txt").read_text(), re.M)
    assert [rows["pins"][package]] == pinned


def test_rows_of_versions_are_listed_and_an_environment_is_held_against_its_row():
    rows = json.loads((ROOT / "constraints" / "tested.json").read_text())
    listed = bash(SCRIPTS / "matrix.sh").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [row["name"] for row in rows]
    other = next(row for row in rows if row["name"] == "newest")
    done = bash(SCRIPTS / "matrix.sh", "newest", "--in", sys.executable)
    assert done.returncode == 1
    assert f"the row says torch, torchvision, transformers ['{other['torch']}'" in done.stderr
    assert "no row 'newer'" in bash(SCRIPTS / "matrix.sh", "newer").stderr
    named = re.findall(r"tests/[\w/]+(?:\.py)?", (SCRIPTS / "matrix.sh").read_text())
    assert len(named) > 6
    assert all((ROOT / name).exists() for name in named)


def test_fast_tests_are_folders_that_exist_without_types(checkout):
    done = bash(checkout / "scripts" / "test.sh", "--fast", "-k", "grpo", cwd=checkout, VLMRL_PYTHON=str(checkout / "python"))
    words = done.stdout.splitlines()
    assert "pyright" not in words
    assert words[-2:] == ["-k", "grpo"]
    chosen = [word for word in words if word.startswith("tests/")]
    assert "tests/test_layering.py" in chosen
    assert len(chosen) > 4
    assert all((ROOT / path).exists() for path in chosen)
    everything = bash(
        checkout / "scripts" / "test.sh", "-k", "grpo", cwd=checkout, VLMRL_PYTHON=str(checkout / "python")
    ).stdout.splitlines()
    assert "pyright" in everything
    assert not any(word.startswith("tests/") for word in everything)


def test_workflows_run_the_scripts():
    """Each workflow is YAML that checks out and runs what a contributor runs; a step is never a command of its own."""
    commands = {}
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        steps = [step for job in jobs for step in job["steps"]]
        assert any(step.get("uses", "").startswith("actions/checkout@") for step in steps)
        commands[path.name] = {step["run"] for step in steps if "run" in step}
    assert commands == {
        "ci.yml": {"bash scripts/test.sh --fast", "bash scripts/pins.sh --check", "bash scripts/docs.sh", "bash .ci/run"},
        "extras.yml": {"bash scripts/test.sh tests/unit/extras tests/zoo"},
        "nightly.yml": {
            "bash scripts/test.sh -m slow",
            "bash scripts/test.sh tests/invariants",
            "bash scripts/matrix.sh ${{ matrix.row }}",
        },
    }
    rows = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]["versions"]["strategy"]["matrix"]["row"]
    tested = [row["name"] for row in json.loads((ROOT / "constraints" / "tested.json").read_text())]
    assert rows == [*(name for name in tested if name != "pins"), "trackers"]


def test_ci_runs_the_test_script():
    assert {"bash scripts/test.sh", "bash scripts/docs.sh"} <= set((ROOT / ".ci" / "run").read_text().splitlines())
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_setup_leaves_nothing_that_runs_at_every_start_of_python(tmp_path):
    """The hook of earlier versions goes; no other one comes."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=120)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "vlmrl-torchvision.pth").write_text("import vlmrl.compat; vlmrl.compat.install_hook()\n")
    python = tmp_path / "python"
    # pip does nothing and the check of what it installed passes; all else is this environment's interpreter
    python.write_text(
        f'#!/usr/bin/env bash\nif [ "$1" = -m ] || [[ "$2" == *transformers* ]]; then exit 0; fi\nexec "{tmp_path}/venv/bin/python" "$@"\n'
    )
    python.chmod(0o755)
    done = bash(SCRIPTS / "setup.sh", VLMRL_PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    assert "setup: done" in done.stdout
    assert [path.name for path in packages.glob("*.pth")] == []


KITS = {"g2rpo": "toy_g2rpo", "fgrpo": "toy_fgrpo", "ton": "toy_ton", "tempsamp": "toy_grounding", "curriculum_gui": "toy_curriculum_gui"}


def rows_for(name: str, folder: Path) -> Path:
    """Empty files of rows where the recipe looks for them."""
    recipe = yaml.safe_load((ROOT / "configs" / "recipes" / f"{name}.yaml").read_text(encoding="utf-8"))
    folder.mkdir()
    for stage in recipe["stages"]:
        (folder / stage["source"]["path"]).touch()
    if "source" in recipe.get("eval", {}):
        (folder / recipe["eval"]["source"]["path"]).touch()
    return folder


@pytest.mark.parametrize("name", KITS)
def test_reproduce_checks_trains_and_evaluates(name, checkout, tmp_path):
    data, tests = rows_for(name, tmp_path / "it's data"), tmp_path / "tests"
    tests.mkdir()
    environment = {"VLMRL_PYTHON": str(checkout / "python")}
    done = bash(checkout / "scripts" / "reproduce.sh", name, "--data", str(data), "--eval-data", str(tests), "run.seed=3", **environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert started(lines) == ["check", "tools", "train", "eval", "compare"]
    within = {"fgrpo": ["rl"], "curriculum_gui": ["rl"], "ton": ["sft", "rl"]}.get(name, [])
    inside = [f"stages.{stage}.source.media_root=media" for stage in within]
    root = f"data.root='{str(data).replace(chr(39), chr(39) * 2)}'"
    given = [f"{checkout}/configs/recipes/{name}.yaml", root, *inside, "run.seed=3"]
    assert lines[3 : 3 + len(given)] == given
    asked = ["prompts", given[0], f"{checkout}/configs/prompts/papers.yaml", f"runs/{name}-prompts", *given[1:]]
    assert lines[lines.index("tools") + 1 :][: len(asked)] == asked
    assert lines[lines.index("train") + 1 :][: len(given)] == given
    assert lines[lines.index("eval") + 1] == f"runs/{name}/final"
    suite = lines[lines.index("--suite") + 1]
    assert lines[lines.index("compare") + 1 :] == [f"runs/{name}/suites/final-{suite}", "--published", "--out", f"runs/{name}/published"]
    assert (ROOT / "evals" / "suites" / f"{lines[lines.index('--suite') + 1]}.yaml").is_file()


def started(lines: list[str]) -> list[str]:
    """The commands of vlmrl that the interpreter printed."""
    return [lines[i + 2] for i, line in enumerate(lines) if line == "-m"]


@pytest.mark.parametrize(("name", "toy"), KITS.items())
def test_reproduce_on_a_stand_in(name, toy, checkout):
    recipe = f"{checkout}/configs/recipes/{toy}.yaml"
    asked = ["-m", "vlmrl", "tools", "prompts", recipe, f"{checkout}/configs/prompts/papers.yaml", f"runs/toy_{name}-prompts"]
    for options, before in (([], [*asked, "stages.rl.steps=2"]), (["--no-prompts"], [])):
        arguments = (name, "--stand-in", *options, "stages.rl.steps=2")
        done = bash(checkout / "scripts" / "reproduce.sh", *arguments, VLMRL_PYTHON=str(checkout / "python"))
        assert done.stdout.split() == [*before, "-m", "vlmrl", "train", recipe, "stages.rl.steps=2"]
    assert (ROOT / "configs" / "recipes" / f"{toy}.yaml").is_file()
    assert (ROOT / "configs" / "prompts" / "papers.yaml").is_file()


@pytest.mark.parametrize("name", [*KITS, "click"])
def test_reproduce_checks_rows_and_stops(name, checkout, tmp_path):
    data = rows_for(name, tmp_path / "data")
    done = bash(checkout / "scripts" / "reproduce.sh", name, "--data", str(data), "--check", VLMRL_PYTHON=str(checkout / "python"))
    assert done.returncode == 0, done.stderr
    assert started(done.stdout.splitlines()) == ["check"]


@pytest.mark.parametrize("name", [*KITS, "click"])
def test_reproduce_checks_a_recipe_without_rows(name, checkout):
    done = bash(checkout / "scripts" / "reproduce.sh", name, "--check", "stages.rl.steps=2", VLMRL_PYTHON=str(checkout / "python"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:-1] == ["-m", "vlmrl", "plan", f"{checkout}/configs/recipes/{name}.yaml", "stages.rl.steps=2"]
    assert f"No rows are given, so none were checked: docs/reproduce/{name}.md says" in lines[-1]
    assert (ROOT / "docs" / "reproduce" / f"{name}.md").is_file()


def test_reproduce_click_asks_first_and_compares_four_arms(checkout, tmp_path):
    """What the interpreter would write between these commands is tested in tests/e2e/test_reproduce.py."""
    data, tests = rows_for("click", tmp_path / "data"), tmp_path / "tests"
    tests.mkdir()
    arguments = ("click", "--data", str(data), "--eval-data", str(tests))
    done = bash(checkout / "scripts" / "reproduce.sh", *arguments, VLMRL_PYTHON=str(checkout / "python"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert started(lines) == ["check", "tools", "study", *["compare"] * 4]
    assert lines[lines.index("prompts") + 2] == f"{checkout}/configs/prompts/click.yaml"
    at = [i for i, line in enumerate(lines) if line == "compare"]
    assert [[Path(run).parts[3] for run in lines[i + 1 : i + 3]] for i in at] == [
        ["base-s0", "sft-s0"],
        ["base-s0", "grpo-s0"],
        ["sft-s0", "grpo-s0"],
        ["grpo-s0", "guard-s0"],
    ]
    assert lines[at[0] + 1] == "runs/click/runs/base-s0/eval/suite/rl"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which method?"),
        (["tempsmap", "--stand-in"], "no kit for 'tempsmap'"),
        (["ton"], "give the official download with --download DIR (docs/reproduce/ton.md), its rows with --data DIR"),
        (["ton", "--download", "no/such"], "--download: no folder 'no/such'"),
        (["ton", "--data", "no/such"], "no file 'no/such/train.jsonl'"),
        (["ton", "--stand-in", "--data", "d"], "leave out --data"),
        (["ton", "--stand-in", "--gpus", "none"], "--gpus: expected a number"),
        (["click", "--download", "d"], "give their rows with --eval-data DIR (docs/reproduce/click.md)"),
        (["click", "--stand-in", "--no-prompts"], "click trains its arms in the wording that is found so"),
        (["click", "--stand-in", "--gpus", "2"], "click is for one GPU"),
        (["click", "--stand-in", "run.name=mine"], "the study names the runs of click"),
        (["click", "--stand-in", "media.max_pixels=1003520"], "were made for the recipe's"),
    ],
)
def test_reproduce_says_what_is_missing(arguments, message, checkout):
    done = bash(checkout / "scripts" / "reproduce.sh", *arguments, VLMRL_PYTHON=str(checkout / "python"))
    assert done.returncode == 64
    assert message in done.stderr


@pytest.mark.parametrize(
    ("there", "left"),
    [(None, "official"), ("official", "official"), ("somebody's", "somebody's")],
    ids=["nothing there", "from a call that was stopped", "somebody's folder"],
)
def test_reproduce_never_removes_media_that_are_there(there, left, checkout, tmp_path):
    """Media inside tables are moved to the rows; a folder of another content is in the way."""
    download, data = tmp_path / "download", tmp_path / "rows"
    download.mkdir()
    (data / "media").mkdir(parents=True) if there else data.mkdir()
    if there:
        (data / "media/a.png").write_text(there)
    python = tmp_path / "prepares"
    python.write_text(
        "#!/usr/bin/env bash\n"
        'case "$1" in */prepare.py) mkdir -p "$3/media"; printf official >"$3/media/a.png"; touch "$3/$5.jsonl" ;; esac\n'
    )
    python.chmod(0o755)
    arguments = ("curriculum_gui", "--download", str(download), "--data", str(data))
    done = bash(checkout / "scripts" / "reproduce.sh", *arguments, VLMRL_PYTHON=str(python))
    refused = there not in (None, "official")
    assert done.returncode == (64 if refused else 0), done.stderr
    assert ("holds other media" in done.stderr) == refused
    assert (data / "media/a.png").read_text() == left
    assert (data / "train.jsonl").exists() != refused


@pytest.mark.parametrize("name", [*KITS, "click"])
def test_pages_of_reproductions_name_what_is_there(name):
    page = (ROOT / "docs" / "reproduce" / f"{name}.md").read_text(encoding="utf-8")
    for path in re.findall(r"(?:configs|data|scripts)/[\w/]+\.\w+", page):
        assert (ROOT / path).is_file(), path
    for suite in re.findall(r"vlmrl list suites (\w+)", page):
        assert (ROOT / "evals" / "suites" / f"{suite}.yaml").is_file()
    assert f"bash scripts/reproduce.sh {name} --stand-in" in page
    assert "not measured" in page or "vlmrl plan" in page
