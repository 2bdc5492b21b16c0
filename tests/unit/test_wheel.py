"""What is installed from a wheel: the same package, its recipes, suites and cards, found by name in an empty folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.unit.test_docker import copied
from vlmrl import __version__

ROOT = Path(__file__).parents[2]
SOURCES = copied(ROOT / "docker" / "cpu.Dockerfile")
"""What an image gets of the checkout: it must be enough for a whole wheel."""
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def files(folder: Path) -> set[str]:
    """Paths below a folder, without what Python or a data script leaves behind."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def shipped_files() -> set[str]:
    """What a wheel should hold below `vlmrl/shipped/`: configs, evals, examples, constraints, and data without the inputs of the tests."""
    found = {f"{name}/{path}" for name in ("configs", "evals", "data", "examples", "constraints") for path in files(ROOT / name)}
    return {path for path in found if "/sample/" not in path and not path.endswith("standins.json")}


def build(kind: str, source: Path, out: Path) -> Path:
    """The archive that `pip` or `python -m build` would make of a folder. Both call these functions of the build backend."""
    out.mkdir()
    done = subprocess.run([sys.executable, "-c", BUILD, kind, str(out)], cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout: building writes beside the sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked: what lies in site-packages after an installation."""
    wheel = build("build_wheel", source, tmp_path_factory.mktemp("wheel") / "dist")
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def python(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in an empty folder, with the unpacked wheel in place of the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_a_wheel_holds_every_file(installed: Path):
    package = files(installed / "vlmrl")
    assert {path for path in package if not path.startswith("shipped/")} == files(ROOT / "vlmrl")
    assert {path.removeprefix("shipped/") for path in package if path.startswith("shipped/")} == shipped_files()
    assert {path.name for path in installed.iterdir()} == {"vlmrl", f"vlmrl-{__version__}.dist-info"}


def test_a_wheel_of_an_sdist_is_the_same(source: Path, installed: Path, tmp_path: Path):
    """`pip install` of an sdist builds a wheel of it: MANIFEST.in must name all that the build copies."""
    with tarfile.open(build("build_sdist", source, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (inner,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(build("build_wheel", inner, tmp_path / "wheel")) as archive:
        assert {name for name in archive.namelist() if not name.startswith("vlmrl-")} == {f"vlmrl/{p}" for p in files(installed / "vlmrl")}


def test_the_citation_is_of_this_package(installed: Path):
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    metadata = (installed / f"vlmrl-{__version__}.dist-info" / "METADATA").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    (author,) = cited["authors"]
    assert {f"Version: {cited['version']}", f"Author: {author['name']}", f"License-Expression: {cited['license']}"} <= set(metadata)


EVERYTHING = """
import json
from vlmrl import paths
from vlmrl.config.load import load, load_mapping
from vlmrl.evals.ask.suite import find_suite, load_suite
import vlmrl

notes = {name: load(name, []).notes for name in paths.names("recipe")}
stage = {"kind": "grpo", "name": "rl", "source": {"path": "a"}, "steps": 1, "rewards": [{"name": "exact"}], "algorithm": "dapo"}
preset = load_mapping({"model": {"path": "m"}, "stages": [stage]}, [])
suites = {name: [task.make_command() for task in load_suite(find_suite(name).path).tasks] for name in paths.names("suite")}
clip = preset.origins["stages.rl.loss.clip_high"]
print(json.dumps({"package": vlmrl.__file__, "recipes": notes, "preset": preset.notes, "clip": clip, "suites": suites}))
"""


def test_every_recipe_and_suite_is_found_by_its_name(installed: Path, tmp_path: Path):
    done = python(installed, tmp_path, "-c", EVERYTHING)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["package"]).parent == installed / "vlmrl"
    assert set(found["recipes"]) == {path.stem for path in (ROOT / "configs" / "recipes").glob("*.yaml")}
    assert set(found["suites"]) == {path.stem for path in (ROOT / "evals" / "suites").glob("*.yaml")}
    for name, (line, *_) in found["recipes"].items():
        assert line == f"recipe {name}: {installed}/vlmrl/shipped/configs/recipes/{name}.yaml (comes with vlmrl)"
    preset = f"{installed}/vlmrl/shipped/configs/algorithms/dapo.yaml"
    assert found["preset"] == [f"algorithm dapo: {preset} (comes with vlmrl)"]
    assert found["clip"].startswith(f"{preset}:")
    scripts = {command.split()[1] for commands in found["suites"].values() for command in commands if command is not None}
    assert len(scripts) > 20
    assert all(Path(script).is_file() and str(installed) in script for script in scripts)


@pytest.mark.slow
def test_the_commands_of_the_readme_work_in_an_empty_folder(installed: Path, tmp_path: Path):
    checked = python(installed, tmp_path, "-m", "vlmrl", "check", "toy_video", "--no-data")
    assert checked.returncode == 0, checked.stderr
    assert f"{installed}/vlmrl/shipped/configs/recipes/toy_video.yaml (comes with vlmrl)" in checked.stderr
    assert "recipe: ok" in checked.stdout
    launched = python(installed, tmp_path, "-m", "vlmrl", "plan", "toy_video", "--launch", "--gpus", "2", "--with", "accelerate")
    assert launched.returncode == 0, launched.stderr
    settings = launched.stdout.split("--config_file ")[1].split()[0]
    assert Path(settings) == installed / "vlmrl/shipped/configs/accelerate/one_machine.yaml"
    assert Path(settings).is_file()
