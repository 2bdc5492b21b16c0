"""agents.trajectory: records come back bit for bit, a fault takes all rewards, seeds do not know the attempt; agents.prompts on it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from tests.support.tiny import Tiny
from vlmrl.errors import CheckpointError
from vlmrl.extras.agents.conversation import Conversation
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.prompts import chains, first_sample, read, rows
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.trajectory import (
    Snapshot,
    Trajectory,
    TrajectoryTurn,
    environment_seed,
    spoilt,
    trajectory_from_json,
    trajectory_to_json,
    turn_columns,
    turn_seed,
)
from vlmrl.extras.toy.picture import Thing, flat, png
from vlmrl.rollout.journal import Journal


def episode(folder: Path, turns: int, **more: object) -> Trajectory:
    screens = ScreenFolder(folder)
    made = []
    for n in range(turns):
        ref = screens.put(png(flat([Thing(color="red", shape="square", box=(n, n, n + 40, n + 40))])))
        seen = Snapshot(text=f"Step {n}.", media=(ref,), state=f"s{n}")
        made.append(TrajectoryTurn(seen=seen, action=f"go {n}", ids=(5, n), logprobs=(-0.1, -1 / 3), reward=0.1 * n, outcome=""))
    return Trajectory(**{"task": {"id": "t"}, "seed": 2**62 + 1, "k": 1, "turns": tuple(made), "identity": {"a": "b"}} | more)


def test_a_record_comes_back_bit_for_bit_through_the_journal(tmp_path: Path):
    one = episode(tmp_path / "screens", 3)
    odd = dataclasses.replace(one, turns=(dataclasses.replace(one.turns[0], logprobs=(-math.inf, -1e-300), finish="length"),))
    fault = dataclasses.replace(one, turns=spoilt(one.turns), fault="timeout")
    records = [trajectory_to_json(each) for each in (one, odd, fault)]
    Journal(tmp_path / "journal", 3).append({"group": "g", "sample": "t", "trajectories": records})
    back = Journal(tmp_path / "journal", 3).replay()[0]["trajectories"]
    assert [trajectory_from_json(record) for record in back] == [one, odd, fault]


def test_records_of_other_versions_are_refused(tmp_path: Path):
    record = trajectory_to_json(episode(tmp_path, 1))
    with pytest.raises(CheckpointError, match="unknown \\['more'\\]"):
        trajectory_from_json(record | {"more": 1})
    with pytest.raises(CheckpointError, match="record of a turn: missing \\['reward'\\]"):
        trajectory_from_json(record | {"turns": [{k: v for k, v in record["turns"][0].items() if k != "reward"}]})


def test_a_fault_takes_all_rewards(tmp_path: Path):
    whole = episode(tmp_path, 3)
    assert whole.total == pytest.approx(0.3)
    with pytest.raises(ValueError, match="takes all rewards away"):
        dataclasses.replace(whole, fault="crashed")
    fault = dataclasses.replace(whole, fault="crashed", turns=spoilt(whole.turns))
    assert (fault.total, fault.outcome) == (None, "fault")
    with pytest.raises(ValueError, match="turns without reward"):
        dataclasses.replace(whole, turns=spoilt(whole.turns))


def test_attempts_of_a_group_begin_at_one_screen_and_sample_apart():
    place = (7, "rl", 3, 2, "task")
    assert environment_seed(*place) == environment_seed(*place)
    seeds = {turn_seed(*place, k, turn) for k in range(4) for turn in range(5)}
    assert len(seeds | {environment_seed(*place)}) == 21
    assert environment_seed(7, "rl", 3, 1, "task") != environment_seed(*place)


def test_a_screen_is_one_file_and_a_torn_one_is_written_again(tmp_path: Path):
    screens = ScreenFolder(tmp_path)
    data = png(flat([]))
    ref = screens.put(data)
    assert screens.put(data) == ref
    assert [file.name for file in tmp_path.iterdir()] == [ref.path]
    (tmp_path / ref.path).write_bytes(data[:50])
    assert ScreenFolder(tmp_path).put(data) == ref
    assert (tmp_path / ref.path).read_bytes() == data


def test_turn_columns_compare_states_and_actions_of_the_group(tmp_path: Path):
    one, two = episode(tmp_path, 3), episode(tmp_path, 2, k=2)
    two = dataclasses.replace(two, turns=(two.turns[0], dataclasses.replace(two.turns[1], action=" go 0 ")))
    found = turn_columns([one, two])
    assert found.trajectory == [0, 0, 0, 1, 1]
    assert found.turn == [0, 1, 2, 0, 1]
    assert found.state == [0, 1, 2, 0, 1]
    assert found.action == [0, 1, 2, 0, 0]
    assert found.shared() == 0.8
    assert turn_columns([one]).shared() == 0.0
    with pytest.raises(ValueError, match="same task and seed"):
        turn_columns([one, dataclasses.replace(two, seed=1)])


@pytest.mark.parametrize(("history", "lengths"), [("all", [5]), ("1", [1] * 5), ("2/2", [2, 2, 1]), ("3/4", [4, 1])])
def test_every_turn_is_one_row_with_what_its_history_says(tmp_path: Path, tiny: Tiny, history: str, lengths: list[int]):
    one = episode(tmp_path, 5)
    conversation = Conversation(dataclasses.replace(tiny.encoder, data_root=tmp_path))
    policy = History.of(history)
    made = chains(one, policy, conversation, lambda ref: tiny.store.get(ref, tmp_path).handle)
    assert [sum(segment.sampled for segment in chain) for _, chain in made] == lengths
    found = rows(made)
    assert [response for _, response in found] == [turn.ids for turn in one.turns]
    for turn, (prompt, _) in enumerate(found):
        window = policy.window(turn)
        shown = [ref for each in one.turns[window.first : turn + 1] for ref in each.seen.media]
        assert [handle.key for handle in prompt.media] == [tiny.store.get(ref, tmp_path).handle.key for ref in shown]
    total, longest = read(made)
    assert longest == max(len(prompt.ids) for prompt, _ in found)
    assert total == sum(len(segment.ids) for _, chain in made for segment in chain)


def test_what_is_not_shown_is_told(tmp_path: Path):
    one = episode(tmp_path, 4)
    assert first_sample(one, 0, 0).question == "Step 0."
    later = first_sample(one, 3, 2)
    assert later.question == "Actions so far: 1. go 0 2. go 1 3. go 2\nStep 3."
    assert [ref.path for ref in later.media] == [turn.seen.media[0].path for turn in one.turns[2:]]
