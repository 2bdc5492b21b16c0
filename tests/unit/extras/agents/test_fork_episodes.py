"""Attempts that fork: what they have in common is sampled once, acted on in every world, and one row with equal nodes in the table."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.batches import batch_for
from tests.support.builders import sample
from tests.support.tiny import Tiny
from tests.unit.extras.agents.test_episodes import play, trained
from vlmrl.extras.agents import episodes
from vlmrl.extras.agents.forks import Forks
from vlmrl.extras.agents.trajectory import Snapshot, TrajectoryTurn
from vlmrl.extras.agents.turns import turn_rollouts
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.pack import Row
from vlmrl.train.stage.algorithm import by_trajectory
from vlmrl.types import Group, Prompt, ScoredGroup, Scores
from vlmrl.zoo.branches import Branches

FORKS = Forks.of({1: 2})


def test_what_attempts_share_is_asked_once_and_trained_as_one(tiny: Tiny, tmp_path: Path) -> None:
    made, asked, table = play(tiny, tmp_path, "all", attempts=4, forks=FORKS)
    assert len(asked) == len(made) * (2 + 4 + 4)
    for of_task in made:
        assert [one.k for one in of_task] == [0, 1, 2, 3]
        for one, other in (of_task[:2], of_task[2:]):
            assert one.turns[0] == other.turns[0], "log-probs and all"
            assert one.turns[1].seen == other.turns[1].seen
            assert one.turns[1].ids != other.turns[1].ids
        assert of_task[0].turns[0].ids != of_task[2].turns[0].ids
    again, _, _ = play(tiny, tmp_path / "again", "all", attempts=4, forks=FORKS)
    assert again == made
    shaken, _, _ = play(tiny, tmp_path / "shaken", "all", attempts=4, forks=FORKS, crash_share=1.0)
    assert shaken == made, "a world that is made again shows what the others saw"

    rows = [(prompt, ids) for one in made[0] for prompt, ids in trained(table, one)]
    packed = [Row(index=n, group=0, prompt=prompt, response=ids) for n, (prompt, ids) in enumerate(rows)]
    tokens = [LAYOUTS[name].pack(packed, tiny.policy.positions, tiny.policy.device, pad_id=0).tokens for name in ("trees", "chains")]
    assert tokens[0] < tokens[1]

    rollouts = turn_rollouts(table, made[0], 0)
    scores = Scores(columns=("environment",), weights=(1.0,), rewards_GK=tuple((float(n == 2),) for n in range(len(rollouts))))
    scored = ScoredGroup(group=Group(id="g", prompt=rollouts[0].prompt, rollouts=tuple(rollouts)), scores=scores)
    batch = batch_for([(3, scored), (5, scored)], "trajectory_N", "turn_N", "node_N")
    x = by_trajectory(batch.x, batch.trajectories)
    nodes = x.provided["node_N"].view(2, 4, 3)
    assert torch.equal(nodes[:, 0, 0], nodes[:, 1, 0])
    assert len(set(nodes.flatten().tolist())) == 2 * (2 + 4 + 4), "groups share nothing"
    found = Branches.of(x, "test")
    assert found.value_N.view(2, 4, 3)[0].tolist() == [[0.5, 1, 1], [0.5, 0, 0], [0, 0, 0], [0, 0, 0]], (
        "the first attempt's last turn got 1"
    )
    assert found.copies_N.view(2, 4, 3)[0].tolist() == [[2, 1, 1]] * 4


def attempt(k: int, shown: str, *, place: int = 0) -> Any:
    return SimpleNamespace(
        place=place,
        k=k,
        task={},
        seed=1,
        done=[TrajectoryTurn(seen=Snapshot(text="first", media=(), state="s"), action="a", ids=(1,), reward=0.0)],
        reply=SimpleNamespace(observation=shown),
        seen=None,
    )


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(episodes, "keep", lambda shown, _: Snapshot(text=shown, media=(), state=shown))
    prompt = Prompt(sample=sample(), ids=(1, 2), media=(), spans=(), answer_format="free")
    monkeypatch.setattr(episodes, "_prompt", lambda table, one: None if one.seen.text == "long" else prompt)
    return SimpleNamespace(screens=None, forks=Forks.of({2: 2}))


def test_a_world_that_shows_something_else_has_drifted(table: Any) -> None:
    every = [attempt(0, "x"), attempt(1, "y"), attempt(2, "x"), attempt(3, "x"), attempt(0, "y", place=1)]
    found = episodes._asked(table, every, 1)
    assert [[one.k for one in alike] for alike, _ in found] == [[0], [2, 3], [0]]
    assert every[1].reply.fault == "drift"
    assert "attempt 1 saw something else than attempt 0" in every[1].reply.detail
    assert [[one.k for one in alike] for alike, _ in episodes._asked(table, [*every[2:], attempt(0, "x"), attempt(1, "y")], 2)] == [
        [2],
        [3],
        [0],
        [0],
        [1],
    ], "behind the fork they may see what they like"


def test_a_prompt_that_is_too_long_ends_all_that_share_it(table: Any) -> None:
    every = [attempt(0, "long"), attempt(1, "long")]
    assert episodes._asked(table, every, 1) == []
    assert [one.done[-1].outcome for one in every] == ["context"] * 2
    assert [one.reply.observation for one in every] == [None] * 2
