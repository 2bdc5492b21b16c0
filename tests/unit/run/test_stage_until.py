"""`until`: its keys, when a stage is over by it, what is said, and that its score is state of the stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.config.load import load
from vlmrl.config.schema import Config, SftSection
from vlmrl.errors import ConfigError
from vlmrl.run.loop import until_line
from vlmrl.train.stage.base import ended
from vlmrl.train.state import RunState

RECIPE = "model: {{path: m}}\nstages:\n  - {{kind: sft, name: s, source: {{path: a}}, steps: 10, until: {until}}}\n"


def problems(until: str, folder: Path) -> list[str]:
    path = folder / "r.yaml"
    path.write_text(RECIPE.format(until=until))
    try:
        load(path, [])
    except ConfigError as error:
        return error.problems
    return []


def stage(**until: Any) -> SftSection:
    more = {"until": {"source": {"path": "b"}} | until} if until else {}
    return SftSection.model_validate({"kind": "sft", "name": "s", "source": {"path": "a"}, "steps": 10} | more)


def test_defaults(tmp_path: Path) -> None:
    until = stage(score=0.9).until
    assert until is not None
    assert (until.every, until.limit, until.max_new_tokens) == (20, 100, 64)
    assert stage().until is None
    assert problems("{source: {path: b}, score: 0.9}", tmp_path) == []


@pytest.mark.parametrize(
    ("until", "key", "word"),
    [
        ("{source: {path: b}, score: 1.1}", "stages.s.until.score", "1.1"),
        ("{source: {path: b}, score: -0.1}", "stages.s.until.score", "-0.1"),
        ("{source: {path: b}, score: 0.5, every: 0}", "stages.s.until.every", "0"),
        ("{source: {path: b}, score: 0.5, limit: 0}", "stages.s.until.limit", "0"),
        ("{source: {path: b}, score: 0.5, max_new_tokens: 0}", "stages.s.until.max_new_tokens", "0"),
        ("{source: {path: b}}", "stages.s.until.score", "missing"),
        ("{score: 0.5}", "stages.s.until.source", "missing"),
        ("{source: {path: b}, scor: 0.5}", "stages.s.until.scor", "score"),
        ("0.9", "stages.s.until", "0.9"),
    ],
)
def test_mistakes_name_the_key(until: str, key: str, word: str, tmp_path: Path) -> None:
    found = problems(until, tmp_path)
    assert any(f"{key}:" in problem and word in problem for problem in found), found


def test_every_kind_of_stage_has_it() -> None:
    grpo = {"kind": "grpo", "name": "rl", "source": {"path": "a"}, "steps": 1, "rewards": [{"name": "temporal_iou"}]}
    cfg = Config.model_validate({"model": {"path": "m"}, "stages": [grpo | {"until": {"source": {"path": "b"}, "score": 0.5}}]})
    assert cfg.stages[0].until is not None


def test_when_a_stage_is_over() -> None:
    gated = stage(score=0.75)
    assert [ended(gated, step, None) for step in (0, 9, 10, 11)] == [False, False, True, True]
    assert [ended(gated, 5, score) for score in (0.0, 0.74, 0.75, 1.0)] == [False, False, True, True]
    assert [ended(gated, 10, score) for score in (0.0, 1.0)] == [True, True]
    assert [ended(stage(), step, 1.0) for step in (5, 10)] == [False, True], "without until a score ends nothing"
    assert ended(stage(score=0.0), 5, 0.0)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 9))
def test_it_is_said_as_it_is_decided(wanted: float, score: float, step: int) -> None:
    assert ended(stage(score=wanted), step, score) != until_line("s", wanted, score, step).startswith("warning: ")


def test_what_is_said() -> None:
    assert until_line("s", 0.9, 0.9125, 40) == "s: held-out score 0.912 after 40 steps (0.9 was asked for)"
    few = "warning: s: held-out score 0.500 after 80 steps, which are all it has; 0.9 was asked for ('until')"
    assert until_line("s", 0.9, 0.5, 80) == few
    assert (
        until_line("s", 1.0, None, 3)
        == "warning: s: held-out score not known after 3 steps, which are all it has; 1 was asked for ('until')"
    )


def test_the_score_is_saved_and_belongs_to_its_stage() -> None:
    state = RunState(step=4, global_step=4, held_out_score=0.5)
    assert state.state_dict()["held_out_score"] == 0.5
    again = RunState()
    again.load_state_dict(state.state_dict())
    assert again.held_out_score == 0.5
    again.start_stage(1)
    assert (again.held_out_score, again.global_step) == (None, 4)
