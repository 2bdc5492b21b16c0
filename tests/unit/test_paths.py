"""Names of recipes, bases and suites: which file is taken, and what is said of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vlmrl import paths
from vlmrl.config.load import load
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.suite import find_suite

ROOT = Path(__file__).parents[2]
STAGE = "stages:\n  - {kind: sft, name: s, source: {path: a.jsonl}, steps: 1}\n"


def test_ours_are_those_of_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.shipped("data") == ROOT / "data"
    found = paths.find("recipe", "toy_video")
    assert found is not None
    assert found.ours
    assert found.path == ROOT / "configs" / "recipes" / "toy_video.yaml"
    assert found.line == f"recipe toy_video: {found.path} (comes with vlmrl)"


def test_in_an_installed_package_they_are_inside_it(tmp_path, monkeypatch):
    package, here = tmp_path / "vlmrl", tmp_path / "empty"
    shutil.copytree(ROOT / "configs", package / "shipped" / "configs")
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(paths, "PACKAGE", package)
    inside = package / "shipped" / "configs"
    for asked in ("ton", "configs/recipes/ton.yaml", "ton.yaml"):
        found = paths.find("recipe", asked)
        assert found is not None
        assert found.path == inside / "recipes" / "ton.yaml"
        assert found.line == f"recipe {asked}: {found.path} (comes with vlmrl)"
    assert paths.names("base") == ["qwen2_5_vl_3b", "qwen2_5_vl_7b", "qwen3_vl_8b"]


@pytest.mark.parametrize("place", ["toy_video.yaml", "configs/recipes/toy_video.yaml"])
def test_a_file_of_the_working_folder_wins(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / place
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("model: {path: mine}\n" + STAGE)
    out = load("toy_video", [])
    assert out.config.model.path == "mine"
    assert out.notes == (f"recipe toy_video: {place} (working folder)",)
    assert load(place, []).notes == ()


def test_a_base_is_found_beside_the_recipe_then_in_the_working_folder_then_among_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "deep" / "own" / "r.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("base: qwen2_5_vl_3b\n" + STAGE)

    def model() -> tuple[str, tuple[str, ...]]:
        out = load(recipe, [])
        return out.config.model.path, out.notes

    ours = ROOT / "configs" / "base" / "qwen2_5_vl_3b.yaml"
    assert model() == ("Qwen/Qwen2.5-VL-3B-Instruct", (f"base qwen2_5_vl_3b: {ours} (comes with vlmrl)",))
    (tmp_path / "qwen2_5_vl_3b.yaml").write_text("model: {path: here}\n")
    assert model() == ("here", ("base qwen2_5_vl_3b: qwen2_5_vl_3b.yaml (working folder)",))
    (recipe.parent / "base").mkdir()
    (recipe.parent / "base" / "qwen2_5_vl_3b.yaml").write_text("model: {path: beside}\n")
    assert model()[0] == "beside"
    # a recipe of ours keeps our base
    assert load("video_tempsamp_3b", []).config.model.path == "Qwen/Qwen2.5-VL-3B-Instruct"


def test_a_suite_of_the_working_folder_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_suite("canary").path == ROOT / "evals" / "suites" / "canary.yaml"
    (tmp_path / "canary.yaml").write_text("id: canary\n")
    assert find_suite("canary").line == "suite canary: canary.yaml (working folder)"


def test_what_is_nowhere_is_said_with_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="toy_vidoe: no such recipe; did you mean 'toy_video'"):
        load("toy_vidoe", [])
    with pytest.raises(ConfigError, match="canery: no such suite; did you mean 'canary'"):
        find_suite("canery")
    with pytest.raises(ConfigError, match=r"folder/x\.yaml: cannot be read"):
        load("folder/x.yaml", [])
    assert paths.find("recipe", "../toy_video") is None
    assert paths.find("recipe", "configs/base/qwen2_5_vl_3b.yaml") is None
    (tmp_path / "ton").mkdir()  # a folder of that name, as of a run, is no recipe
    found = paths.find("recipe", "ton")
    assert found is not None
    assert found.ours
