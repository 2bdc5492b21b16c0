"""How a model's family is chosen: by the recipe, by the model type, by what an exported folder says, by the report of the kit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from tests.support.reports import HERE, written
from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.extras.families.verdict import read
from vlmrl.families.registry import CHOICES, FAMILIES, choose
from vlmrl.policy.load import SETTINGS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    AutoConfig.for_model("gemma3").save_pretrained(tmp_path)
    return tmp_path


def test_auto_goes_by_the_model_type(folder: Path) -> None:
    for name, family in FAMILIES.items():
        assert choose("auto", name, str(folder)) is family
    assert [name for name, family in FAMILIES.items() if not family.own_code] == ["qwen3_5"], "an optional part runs it"


def test_an_unknown_type_is_refused_with_both_ways_out(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        choose("auto", "gemma3", str(folder))
    text = str(caught.value)
    assert f"vlmrl check {folder}" in text
    assert "model.family: generic" in text
    assert text.startswith(f"model.path: '{folder}' is a 'gemma3' model; supported: ")


def test_generic_takes_any_type_also_one_with_code_of_its_own(folder: Path) -> None:
    for name in ("gemma3", "qwen2_5_vl"):
        family = choose("generic", name, str(folder))
        assert (family.name, family.own_code, family.choice) == (name, False, "generic")


def test_a_report_of_the_kit_admits_and_counts_for_its_version_of_transformers_only(folder: Path) -> None:
    written(folder, layouts=("repeat", "fork"))
    assert read(str(folder)).admitted() == ("repeat", "fork")
    assert choose("auto", "gemma3", str(folder)).choice == "generic"
    assert choose("auto", "qwen2_5_vl", str(folder)).own_code, "a report does not take away code of a family's own"
    for layouts, versions in (((), HERE), (("repeat",), {"transformers": "4.0"})):
        written(folder, layouts=layouts, versions=versions)
        assert read(str(folder)).admitted() == ()
        with pytest.raises(ConfigError, match="supported"):
            choose("auto", "gemma3", str(folder))


@pytest.mark.parametrize("damage", [{"layouts": "repeat"}, {"versions": None}, {"promises": []}])
def test_a_damaged_report_is_an_error_and_not_none(folder: Path, damage: dict[str, Any]) -> None:
    written(folder, keys=damage)
    with pytest.raises(ConfigError, match=r"conform\.json: no report of `vlmrl check`"):
        choose("auto", "gemma3", str(folder))
    assert choose("auto", "qwen2_5_vl", str(folder)).own_code


def test_an_exported_folder_says_what_it_was_trained_as(folder: Path) -> None:
    (folder / SETTINGS).write_text(json.dumps({"positions": "max", "family": "generic"}))
    assert choose("auto", "gemma3", str(folder)).choice == "generic"
    assert not choose("auto", "qwen3_vl", str(folder)).own_code
    assert choose("qwen_vl", "qwen3_vl", str(folder)).own_code, "the recipe decides where it names one"


@pytest.mark.parametrize("content", [b'{"family": "gener', b'["generic"]', b"\xff\xfe"])
def test_a_damaged_export_is_an_error_and_not_another_model(folder: Path, content: bytes) -> None:
    (folder / SETTINGS).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"vlmrl\.json: damaged: .*export the model again"):
        choose("auto", "qwen3_vl", str(folder))
    assert choose("qwen_vl", "qwen3_vl", str(folder)).own_code, "where the recipe names a family the file is not asked"


def test_an_unknown_family_is_named_with_those_there_are(folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"model\.family: unknown 'qwen'; known: auto, {', '.join(CHOICES)}"):
        choose("qwen", "gemma3", str(folder))
