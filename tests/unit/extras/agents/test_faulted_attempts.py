"""agents.episodes, agents.turns: whatever a world does, an attempt with a fault has no reward anywhere, any other all of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import sample
from vlmrl.extras.agents import episodes, turns
from vlmrl.extras.agents.ahead import Ahead, Spent
from vlmrl.extras.agents.episodes import anew, run_attempts
from vlmrl.extras.agents.forks import NONE
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.protocol import Observation
from vlmrl.extras.agents.reply import Reply
from vlmrl.extras.agents.trajectory import Snapshot, Trajectory, TrajectoryTurn, trajectory_from_json, trajectory_to_json
from vlmrl.extras.agents.turns import notes_of, turn_rollouts
from vlmrl.types import Prompt, Request, Rollout

PROMPT = Prompt(sample=sample(), ids=(1, 2), media=(), spans=(), answer_format="free")
SHOWN = Observation(text="a screen", screens=(), state="s")
MOST = 4
FAULTS = st.sampled_from(["crashed", "timeout", "memory", "protocol", "drift", "raised:OSError"])
STEP = st.one_of(FAULTS, st.tuples(st.floats(-2, 2), st.booleans()))
"""A fault, or (reward, whether the episode ends)."""
ATTEMPT = st.tuples(st.one_of(FAULTS, st.none()), st.lists(STEP, min_size=MOST, max_size=MOST))
"""(what the reset does, what the steps do)."""
Script = tuple[str | None, list[Any]]


def now(reply: Reply) -> Future[Reply]:
    made: Future[Reply] = Future()
    made.set_result(reply)
    return made


class Scripted:
    """An episode that does what is written."""

    def __init__(self, script: Script):
        self.reset_fault, self.steps = script[0], list(script[1])
        self.closed = False

    def begin(self) -> None:
        """It begins when it is asked."""

    def past(self) -> None:
        """Nothing that a script looks at."""

    def follow(self, past: None) -> None:
        """It does what is written."""

    @property
    def began(self) -> bool:
        return self.reset_fault is None

    def reset(self) -> Future[Reply]:
        return now(Reply(observation=SHOWN) if self.reset_fault is None else Reply(fault=self.reset_fault))

    def step(self, action: str) -> Future[Reply]:
        del action
        if self.reset_fault is not None:
            return now(Reply(fault=self.reset_fault))
        now_ = self.steps.pop(0)
        if isinstance(now_, str):
            return now(Reply(fault=now_))
        reward, over = now_
        return now(Reply(observation=None if over else SHOWN, reward=reward, outcome="failure" if over else ""))

    def close(self) -> None:
        self.closed = True


def expected(script: Script) -> tuple[str | None, list[float]]:
    """(fault, rewards) of an attempt."""
    if script[0] is not None:
        return script[0], []
    rewards: list[float] = []
    for step in script[1]:
        if isinstance(step, str):
            return step, []
        rewards.append(step[0])
        if step[1]:
            break
    return None, rewards


def generate(requests: Sequence[Request], settings: object) -> list[list[Rollout]]:
    del settings
    return [
        [Rollout(k=k, ids=(3, 4), logprobs=(-1.0, -1.0), text=f"go {k}", finish="stop", policy_version=0) for k in request.ks]
        for request in requests
    ]


def seen(observation: object, screens: object) -> Snapshot:
    del observation, screens
    return Snapshot(text="a screen", media=(), state="s")


@given(groups=st.lists(st.lists(ATTEMPT, min_size=1, max_size=4), min_size=1, max_size=3), alike=st.booleans())
def test_a_fault_takes_every_reward_and_nothing_else_does(groups: list[list[Script]], alike: bool) -> None:
    scripts = [script for group in groups for script in group]
    opened: list[Scripted] = []

    def episode(task: object, seed: object, *, leads: bool) -> Scripted:
        del task, seed, leads
        opened.append(Scripted(scripts[len(opened)]))
        return opened[-1]

    table: Any = SimpleNamespace(
        pool=SimpleNamespace(ahead=Ahead(episode, alike=alike), identity={"version": "1"}),
        talk=anew(generate),
        settings=None,
        history=History(),
        turns=MOST,
        action=lambda text: text,
        conversation=None,
        handle=None,
        answer_format="free",
        screens=None,
        forks=NONE,
        spent=Spent(),
    )
    with mock.patch.object(episodes, "keep", seen), mock.patch.object(episodes, "_prompt", return_value=PROMPT):
        played = run_attempts(table, [({"id": f"t{n}"}, n) for n in range(len(groups))], [len(g) for g in groups], lambda *where: 0)
    assert all(one.closed for one in opened)
    for group, of_group in zip(groups, played, strict=True):
        wanted = [expected(script) for script in group]
        assert [one.fault for one in of_group] == [fault for fault, _ in wanted]
        for one, (fault, rewards) in zip(of_group, wanted, strict=True):
            check(one, fault, rewards)
        with mock.patch.object(turns, "chains", lambda one, *_, **__: one), mock.patch.object(turns, "rows", made_rows):
            rows = turn_rollouts(table, of_group, 0)
        whole = [(k, t, reward) for k, (fault, rewards) in enumerate(wanted) if fault is None for t, reward in enumerate(rewards)]
        assert [(row.attempt, row.turn, row.reward) for row in rows] == whole, "rows are the turns of whole attempts, with their rewards"
        notes = notes_of(of_group)
        assert notes["environment/faults"] == sum(fault is not None for fault, _ in wanted)
        assert notes["environment/turns"] == len(whole)


def made_rows(one: Trajectory) -> list[tuple[Prompt, tuple[int, ...]]]:
    return [(PROMPT, turn.ids) for turn in one.turns]


def check(one: Trajectory, fault: str | None, rewards: list[float]) -> None:
    kept = json.loads(json.dumps(trajectory_to_json(one)))
    assert trajectory_from_json(kept) == one
    if fault is None:
        assert [turn.reward for turn in one.turns] == rewards
        assert one.total == sum(rewards)
        return
    assert one.total is None
    assert [turn.reward for turn in one.turns] == [turn["reward"] for turn in kept["turns"]] == [None] * len(one.turns)


def test_a_trajectory_with_a_fault_cannot_be_given_a_reward() -> None:
    turn = TrajectoryTurn(seen=Snapshot(text="", media=(), state="s"), action="go", ids=(1,), logprobs=(0.0,), reward=0.0)
    with pytest.raises(ValueError, match="a fault takes all rewards away"):
        Trajectory(task={}, seed=0, k=0, turns=(turn,), fault="crashed")
