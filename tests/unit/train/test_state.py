"""The run's state: what is saved, restored and reset follows from its fields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest

from vlmrl.errors import CheckpointError
from vlmrl.train.state import RunState, StageState


def changed(state: RunState) -> RunState:
    """Every field with a value that is not its default."""
    for one in fields(state):
        if one.name == "ledger":
            state.ledger.observe("a", rewards=[1.0], lengths=[3], step=1, diversity=None)
        else:
            now = getattr(state, one.name)
            setattr(state, one.name, {"k": {}} if isinstance(now, dict) or now is None else now + 7)
    return state


def test_every_field_is_saved_and_restored() -> None:
    before = changed(RunState())
    after = RunState()
    after.load_state_dict(before.state_dict())
    assert after.state_dict() == before.state_dict() != RunState().state_dict()
    assert set(before.state_dict()) == {one.name for one in fields(RunState)}


def test_a_field_that_is_added_is_saved_restored_and_reset() -> None:
    """A state with one field more needs nothing else: the class below only names it."""

    @dataclass(kw_only=True)
    class Longer(RunState):
        added: list[int] = field(default_factory=list)

    before = Longer(added=[1, 2])
    assert before.state_dict()["added"] == [1, 2]
    after = Longer()
    after.load_state_dict(before.state_dict())
    assert after.added == [1, 2]
    with pytest.raises(CheckpointError, match="added"):
        Longer().load_state_dict(RunState().state_dict())


def test_a_new_stage_starts_from_a_fresh_stage_state() -> None:
    state = changed(RunState())
    ledger, global_step, version = state.ledger, state.global_step, state.policy_version
    state.start_stage(3)
    assert {one.name: getattr(state, one.name) for one in fields(StageState)} == vars(StageState())
    assert (state.stage, state.global_step, state.policy_version) == (3, global_step, version)
    assert state.ledger is ledger
