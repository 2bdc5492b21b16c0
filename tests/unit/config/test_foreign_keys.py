"""Keys of other trainers: hints, and docs/coming_from.md, are the table of `config.foreign_keys`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tests.test_glossary import is_key
from vlmrl.config.foreign_keys import PAGE, ROWS, TRAINERS, hint
from vlmrl.config.layers import PRESET
from vlmrl.config.load import load
from vlmrl.config.schema import Config, GrpoSection
from vlmrl.errors import ConfigError
from vlmrl.methods import registries

TEXT = (Path(__file__).parents[3] / PAGE).read_text(encoding="utf-8")
RECIPE = "model: {path: m}\nstages:\n  - {kind: grpo, name: rl, source: {path: a}, steps: 3, rewards: [{name: exact}]}\n"


def told(path: Path, text: str, *overrides: str) -> list[str]:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, list(overrides))
    return caught.value.problems


def cells(row: tuple[str, ...]) -> list[str]:
    """A row as the page shows it."""
    return [row[0], *(", ".join(f"`{name}`" for name in names.split()) for names in row[1:])]


def test_the_page_shows_the_table() -> None:
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")]
    tables = [row for row in shown if len(row) == 5 and not set(row[0]) <= {"-"}]
    assert tables[0] == ["here", *TRAINERS.values()]
    assert [row for row in tables if row != tables[0]] == [cells(row) for row in ROWS]


def test_every_key_here_exists() -> None:
    arguments = {name for registry in registries().values() for method in registry.names() for name in registry.get(method).parameters}
    for row in ROWS:
        for code in re.findall(r"`([^`]+)`", row.here):
            key = code.partition(":")[0]
            known = is_key(key, GrpoSection) or is_key(key, Config) or is_key(f"rewards.{key}", GrpoSection) or key in arguments
            assert (
                known
                or code.startswith(("{name: ", "vlmrl ", "--"))
                or code in ("vision", "projector", "language", "difficulty_band", "sapo", "project", PRESET)
            ), (row.here, code)


def test_names_of_trl_are_its_own() -> None:
    trl = pytest.importorskip("trl")
    known = {field.name for section in (trl.GRPOConfig, trl.ModelConfig, trl.ScriptArguments) for field in dataclasses.fields(section)}
    assert {name for row in ROWS for name in row.trl.split()} <= known | {"reward_funcs"}


def test_no_name_means_two_things() -> None:
    for column in TRAINERS:
        names = [name for row in ROWS for name in getattr(row, column).split()]
        assert len(names) == len(set(names)), column


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("learning_rate", "TRL's and ms-swift's 'learning_rate' is 'optim.lr' here"),
        ("per_device_train_batch_size", "is 'max_tokens_per_microbatch' (tokens, not rows) here; see docs/coming_from.md"),
        ("rl.num_iterations", "has no counterpart (each rollout is trained on once)"),
        ("actor_rollout_ref.rollout.n", "verl's 'actor_rollout_ref.rollout.n' is 'rollout.num_generations' here"),
        ("worker.rollout.n", "EasyR1's 'worker.rollout.n' is 'rollout.num_generations' here"),
        ("rollout.n", "is 'rollout.num_generations' here"),
        ("data.rollout_batch_size", "EasyR1's 'data.rollout_batch_size' is 'rollout.prompts_per_step'"),
        ("worker.actor.loss_type", "EasyR1's"),
    ],
)
def test_hints(path: str, expected: str) -> None:
    found = hint(path.split("."))
    assert found is not None
    assert expected in found


@pytest.mark.parametrize("path", ["path", "name", "learning_rates", "num_generation", ""])
def test_no_hint_where_nothing_or_several_things_are_meant(path: str) -> None:
    assert hint(path.split(".")) is None


def test_a_recipe_with_keys_of_trl(tmp_path: Path) -> None:
    found = told(tmp_path / "r.yaml", f"{RECIPE}num_generations: 8\nnum_iterations: 2\n", "stages.rl.per_device_train_batch_size=4")
    assert any("r.yaml:4: num_generations: unknown key" in one and "'rollout.num_generations' here" in one for one in found)
    assert any("r.yaml:5: num_iterations: unknown key" in one and "no counterpart" in one for one in found)
    assert any(one.startswith("command line: stages.rl.per_device") and "'max_tokens_per_microbatch'" in one for one in found)
    assert len(found) == 3


def test_each_known_key_of_a_foreign_section_has_its_line(tmp_path: Path) -> None:
    """A pasted section of verl's file: the section is unknown, and what is known of it is said key by key."""
    verl = "actor_rollout_ref:\n  rollout:\n    n: 5\n    nothing: 3\n  actor:\n    kl_loss_coef: 0.01\ndata:\n  train_batch_size: 64\n"
    found = told(tmp_path / "r.yaml", RECIPE + verl)
    lines = [one.removeprefix(f"{tmp_path}/r.yaml:").partition(":")[0] for one in found]
    assert sorted(map(int, lines)) == [4, 6, 9, 11]
    assert not any("nothing" in one for one in found)
