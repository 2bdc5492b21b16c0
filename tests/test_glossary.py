"""docs/glossary.md names things that exist: recipe keys, registered methods, code, and TRL's own arguments."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from vlmrl.config.methods import SLOTS
from vlmrl.config.schema import Config, GrpoSection
from vlmrl.methods import registries

PAGE = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Cells of the rows of the first table below a heading, without its head."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 10, heading
    return rows[2:]


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Section classes in a field's type: itself, or inside of a tuple, a union or `Annotated`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_of(inner)]


def is_key(path: str, model: type[BaseModel]) -> bool:
    name, _, rest = path.partition(".")
    if name not in model.model_fields:
        return False
    return not rest or any(is_key(rest, inner) for inner in models_of(model.model_fields[name].annotation))


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("key", [code(row[0])[0] for row in table("Recipe keys")])
def test_recipe_keys_exist(key: str) -> None:
    assert is_key(key, GrpoSection) or is_key(key, Config)


def test_wrong_keys_are_found() -> None:
    assert not is_key("rollout.per_prompt", GrpoSection)
    assert not is_key("model.lora.size", Config)
    assert is_key("model.lora.rank", Config)


def test_every_slot_of_a_stage_is_in_the_table() -> None:
    assert {code(row[0])[0] for row in table("Recipe keys")} >= {*SLOTS, "rollout.strategy"}


def test_sizes_of_a_rollout_are_all_in_the_table() -> None:
    """A key that a user of another trainer looks for must not be missing."""
    fields = GrpoSection.model_fields["rollout"].annotation.model_fields
    assert {code(row[0])[0] for row in table("Recipe keys")} >= {f"rollout.{name}" for name in fields if name != "engine"}


@pytest.mark.parametrize("row", table("Method names"), ids=lambda row: row[0])
def test_methods_are_registered(row: list[str]) -> None:
    registry = registries()[row[1]]
    (name,) = code(row[0])
    assert name in registry.names()
    for paper in re.findall(r"arXiv:[\d.]+\d", row[4]):
        assert registry.get(name).paper == paper


@pytest.mark.parametrize("name", [code(row[0])[0] for row in table("Words of the code")])
def test_code_names_exist(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_names_of_trl_are_its_own() -> None:
    trl = pytest.importorskip("trl")
    known = {*trl.GRPOConfig.__dataclass_fields__, "reward_funcs", "peft_config.r"}
    cells = [name for row in table("Recipe keys") for name in code(row[1])]
    assert len(cells) > 20
    assert set(cells) <= known
    arguments = {name.partition("=")[0] for row in table("Method names") for name in code(row[2]) if "=" in name}
    assert arguments <= known
    rewards = importlib.import_module("trl.rewards")
    others = [name for row in table("Method names") for name in code(row[2]) if "=" not in name and not name.startswith('"')]
    assert "get_soft_overlong_punishment" in others
    assert [name for name in others if not (hasattr(trl, name) or hasattr(rewards, name) or name in known)] == []
