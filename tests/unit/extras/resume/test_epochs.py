"""`epochs` of a stage: how many steps they are, what is refused, and that a resolved recipe has steps alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from vlmrl.config.load import load, load_mapping
from vlmrl.errors import ConfigError
from vlmrl.extras.resume.epochs import as_steps, rows_per_step
from vlmrl.run.session import fixed_options

ROWS = 10


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    lines = [
        {"id": f"r{n}", "data_type": "text", "task": "t", "answer_type": "exact_text", "prompt": f"q{n}", "answer": "red"}
        for n in range(ROWS)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[0]]))
    return tmp_path


def recipe(root: Path, **stage: Any) -> dict[str, Any]:
    grpo = {"kind": "grpo", "name": "rl", "source": {"path": "rows.jsonl"}, "rewards": [{"name": "exact"}]}
    return {"model": {"path": "m"}, "data": {"root": str(root), "dedupe": "keep_first"}, "stages": [grpo | stage]}


@pytest.mark.parametrize(
    ("stage", "steps"),
    [
        ({"epochs": 2, "rollout": {"prompts_per_step": 4}}, 5),
        ({"epochs": 1, "rollout": {"prompts_per_step": 4}}, 3),
        ({"epochs": 0.5, "rollout": {"prompts_per_step": 5}}, 1),
        ({"epochs": 3, "rollout": {"prompts_per_step": 16}}, 2),
    ],
)
def test_as_many_steps_as_the_rows_need(stage: dict[str, Any], steps: int, rows: Path) -> None:
    said: list[str] = []
    loaded = load_mapping(recipe(rows, **stage), [])
    assert loaded.config.stages[0].steps == 0
    made = as_steps(loaded, rows, said.append)
    assert (made.config.stages[0].steps, made.config.stages[0].epochs) == (steps, None)
    assert said == [f"stage 'rl': {stage['epochs']:g} epochs of {ROWS} rows, {stage['rollout']['prompts_per_step']} a step: {steps} steps"]
    assert made.hash != loaded.hash
    (rows / "resolved.yaml").write_text(made.text)
    assert load(rows / "resolved.yaml", []).config == made.config, "the resolved recipe can be loaded"
    assert fixed_options(made.config) == fixed_options(load_mapping(recipe(rows, **stage | {"epochs": None, "steps": steps}), []).config)


def test_supervised_stages_count_their_batch(rows: Path) -> None:
    config = recipe(rows)
    config["stages"] = [{"kind": "sft", "name": "s", "source": {"path": "rows.jsonl"}, "epochs": 2, "batch": 3}]
    made = as_steps(load_mapping(config, []), rows, lambda text: None)
    assert made.config.stages[0].steps == 7
    assert rows_per_step(made.config.stages[0]) == 3


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ({}, "neither steps (1 or more) nor epochs"),
        ({"steps": 3, "epochs": 1}, "steps (3) and epochs (1) both"),
        ({"epochs": 0}, "epochs"),
        ({"steps": -1}, "steps"),
    ],
)
def test_exactly_one_of_them_is_given(stage: dict[str, Any], told: str, rows: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_mapping(recipe(rows, **stage), [])
    assert any(told in problem for problem in caught.value.problems), caught.value.problems


def test_both_ways_round_trip_before_they_are_resolved(rows: Path) -> None:
    loaded = load_mapping(recipe(rows, epochs=1.5), [])
    assert load_mapping(yaml.safe_load(loaded.text), []).config == loaded.config
