"""agents.turns: turns as rows, faults as values, and trajectories in the journal."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import batch_for
from tests.support.builders import group
from tests.support.tiny import Tiny
from tests.unit.extras.agents.test_episodes import play
from vlmrl.errors import CheckpointError, RemoteError
from vlmrl.extras.agents.trajectory import Trajectory, trajectory_from_json, trajectory_to_json
from vlmrl.extras.agents.turns import FaultWatch, notes_of, turn_rollouts
from vlmrl.protocols import RewardContext
from vlmrl.rewards.environment_reward import environment_reward
from vlmrl.rewards.run.wire import decode_call, encode_call
from vlmrl.train.statistics import worth
from vlmrl.types import Group, ScoredGroup, Scores, TurnRollout


def lost(k: int) -> Trajectory:
    return Trajectory(task={"id": "a"}, seed=1, k=k, turns=(), fault="timeout")


def test_turns_are_rows_with_what_their_sampler_saw(tiny: Tiny, tmp_path: Path) -> None:
    (first, _), asked, table = play(tiny, tmp_path, "1")
    rows = turn_rollouts(table, first, 7)
    assert [(row.k, row.attempt, row.turn) for row in rows] == [(n, n // 3, n % 3) for n in range(6)]
    assert rows[0].prompt is rows[3].prompt, "both attempts begin at the same screen"
    assert {row.prompt.ids for row in rows} <= {prompt.ids for prompt in asked}
    assert all(row.policy_version == 7 and len(row.logprobs) == len(row.ids) for row in rows)
    again = [trajectory_from_json(trajectory_to_json(one)) for one in first]
    assert turn_rollouts(table, again, 7) == rows
    assert turn_rollouts(table, [first[0], lost(1)], 7) == rows[:3], "an attempt with a fault gives no rows and changes no other"
    of_task = Group(id="g", prompt=rows[0].prompt, rollouts=tuple(rows))
    assert of_task.trained_under(rows[4]) is of_task.sampled_under(rows[4]) is rows[4].prompt
    assert environment_reward(of_task, RewardContext()) == [0.0] * 6
    sent, _ = decode_call(json.loads(encode_call(of_task, RewardContext())))
    assert sent.rollouts == of_task.rollouts


def test_environment_reward_of_rows_that_are_no_turns() -> None:
    assert environment_reward(group(["a", "b"]), RewardContext()) == [None, None]


def test_a_prompt_that_grows_too_long_ends_the_attempt(tiny: Tiny, tmp_path: Path) -> None:
    """With the whole conversation in the prompt the last turn's is the longest: one token less, and there is no last turn."""
    _, asked, _ = play(tiny, tmp_path / "whole", "all", attempts=1)
    longest = max(len(prompt.ids) for prompt in asked)
    made, cut, table = play(tiny, tmp_path / "cut", "all", attempts=1, longest=longest - 1)
    assert 0 < len(cut) < len(asked)
    every = [one for of_task in made for one in of_task]
    assert "context" in [one.outcome for one in every]
    assert all(len(prompt.ids) < longest for prompt in cut)
    assert all(one.fault is None and one.total == 0.0 for one in every)
    assert sum(len(turn_rollouts(table, [one], 0)) for one in every) == len(cut)


def test_counts_of_a_group(tiny: Tiny, tmp_path: Path) -> None:
    (first, _), _, _ = play(tiny, tmp_path, "1")
    notes = notes_of([*first, lost(2)])
    assert notes["environment/attempts"] == 3
    assert notes["environment/faults"] == notes["environment/fault/timeout"] == 1
    assert notes["environment/turns"] == 6
    assert notes["environment/limit/turns"] == 2
    assert notes["environment/met_again"] >= 2


def turn(attempt: int, number: int, state: str, reward: float, prompt: Any, *, k: int) -> TurnRollout:
    return TurnRollout(
        k=k,
        ids=(1, 2),
        logprobs=(-0.5, -0.5),
        text=f"<answer>{state}</answer>",
        finish="stop",
        policy_version=0,
        attempt=attempt,
        turn=number,
        state=state,
        reward=reward,
        prompt=prompt,
    )


def test_the_batch_knows_attempts_turns_and_states() -> None:
    prompt = group(["x"]).prompt
    rows = [turn(0, 0, "s0", 0.0, prompt, k=0), turn(0, 1, "s1", 1.0, prompt, k=1), turn(2, 0, "s0", 0.0, prompt, k=2)]
    of_task = Group(id="g", prompt=prompt, rollouts=tuple(rows))
    scores = Scores(columns=("environment",), weights=(1.0,), rewards_GK=tuple((row.reward,) for row in rows))
    one, other = (ScoredGroup(group=dataclasses.replace(of_task, id=name), scores=scores) for name in "gh")
    made = batch_for([(4, one), (6, other)], "trajectory_N", "turn_N", "state_N")
    x = made.x.provided
    assert x["trajectory_N"].tolist() == [0, 0, 1, 2, 2, 3]
    assert x["turn_N"].tolist() == [0, 1, 0, 0, 1, 0]
    states = x["state_N"].tolist()
    assert states[0] == states[2] != states[1]
    assert states[0] != states[3], "states of different tasks are different"
    worth_N, counted_N = worth(made)
    assert worth_N.tolist() == [1.0, 1.0, 0.0] * 2
    assert counted_N.tolist() == [True, False, True] * 2
    assert one.outcomes() == [(1.0, 4), (0.0, 2)]


def test_faults_beyond_the_allowed_share_end_the_run() -> None:
    whole = Trajectory(task={"id": "a"}, seed=1, k=0, turns=())
    watch = FaultWatch(0.02)
    watch.begin(0)
    watch.count(0, "g0", [whole] * 15 + [lost(0)])
    watch.judge(0, [whole, lost(0)], "", last=True)  # one of 16 now, of the 16 that 50 such steps allow
    watch.finish(0, 1, 16)
    watch.begin(1)
    watch.count(1, "g1", [lost(0)] * 17 + [whole])
    watch.count(1, "g1", [lost(0)] * 17 + [whole])  # a group that is read again counts once
    with pytest.raises(RemoteError, match=r"18 of 34 episodes of the last 2 steps .*timeout"):
        watch.judge(1, [lost(0)] * 17, "", last=False)
    other = FaultWatch(1.0)
    other.load_state_dict(watch.state_dict())
    assert other.state_dict() == {"window": [[1, 16]], "identity": {}}
    with pytest.raises(CheckpointError):
        other.load_state_dict({"window": []})


def test_a_step_without_a_whole_episode_ends_the_run() -> None:
    watch = FaultWatch(1.0)
    watch.begin(0)
    watch.count(0, "g0", [lost(0)])
    watch.judge(0, [lost(0)], "", last=False)
    with pytest.raises(RemoteError, match="all of 1 episodes"):
        watch.judge(0, [lost(0)], "", last=True)


def test_steps_that_are_played_ahead_are_judged_with_those_before_them() -> None:
    """Whether the step before is finished meanwhile changes nothing: what a step is judged with is taken when it is planned."""
    whole, said = Trajectory(task={"id": "a"}, seed=1, k=0, turns=()), list[str]()
    for early in (False, True):
        watch = FaultWatch(0.02)
        watch.begin(0)
        watch.count(0, "g0", [whole] * 14 + [lost(0)] * 2)
        watch.begin(1)
        watch.count(1, "g1", [whole] * 8 + [lost(0)] * 8)
        if early:
            watch.finish(0, 9, 32)  # of two ranks
        watch.judge(1, [lost(0)], "", last=True)  # 10 of the 16 that 50 such steps allow
        watch.begin(2)
        watch.count(2, "g2", [whole] * 8 + [lost(0)] * 8)
        if not early:
            watch.finish(0, 9, 32)
        with pytest.raises(RemoteError) as error:
            watch.judge(2, [lost(0)], "", last=False)
        said.append(str(error.value))
        watch.finish(1, 8, 16)
        assert watch.state_dict()["window"] == [[9, 32], [8, 16]]
    assert "18 of 48 episodes of the last 3 steps" in said[0]
    assert "25 of 64 episodes of the last 3 steps" in said[1]


def test_another_world_is_refused() -> None:
    watch = FaultWatch(1.0)
    watch.same({})
    watch.same({"version": "1"})
    watch.same({"version": "1"})
    with pytest.raises(CheckpointError, match="put it back"):
        watch.same({"version": "2"})
