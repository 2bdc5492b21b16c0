"""The model of a recipe is looked for on this machine alone: in a folder, or in the hub's cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlmrl.errors import ConfigError
from vlmrl.extras.starter.models import KINDS, find_model
from vlmrl.extras.starter.recipe import MODEL
from vlmrl.families.registry import FAMILIES
from vlmrl.policy.found import problem_of


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "hub"
    folder.mkdir()
    for place in ("constants.HF_HUB_CACHE", "file_download.HF_HUB_CACHE", "utils._cache_manager.HF_HUB_CACHE"):
        monkeypatch.setattr(f"huggingface_hub.{place}", str(folder), raising=False)
    return folder


def add(hub: Path, name: str, kind: str = "qwen2_5_vl", *, whole: bool = True) -> None:
    repo = hub / f"models--{name.replace('/', '--')}"
    commit = "0" * 40
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_text(json.dumps({"model_type": kind}))
    (snapshot / "preprocessor_config.json").write_text("{}")
    if whole:
        (snapshot / "model.safetensors").write_bytes(b"")


def test_the_kinds_are_those_that_train_without_a_report():
    assert set(KINDS) == set(FAMILIES)


def test_the_default_comes_first(hub: Path):
    add(hub, "a/one")
    add(hub, MODEL)
    assert find_model(None)[0] == MODEL


def test_the_only_model_that_can_be_trained_is_taken(hub: Path):
    add(hub, "a/one")
    add(hub, "a/text", "llama")
    add(hub, "a/cut", whole=False)
    assert find_model(None)[0] == "a/one"


def test_several_models_are_a_choice(hub: Path):
    add(hub, "a/one")
    add(hub, "b/two", "qwen3_vl")
    with pytest.raises(ConfigError, match="several models; give one of them: a/one, b/two"):
        find_model(None)
    assert find_model("b/two")[0] == "b/two"


def test_no_model_says_how_to_get_one(hub: Path):
    with pytest.raises(ConfigError, match=rf"the default is not here: .*hf download {MODEL}"):
        find_model(None)
    assert "without *.safetensors; get it with: hf download a/cut" in str(add(hub, "a/cut", whole=False) or problem_of("a/cut"))


def test_a_folder_must_hold_a_model(hub: Path, tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no \*processor_config\.json"):
        find_model(str(tmp_path))
    with pytest.raises(ConfigError, match="no id of the hub"):
        find_model("a/b/c")
