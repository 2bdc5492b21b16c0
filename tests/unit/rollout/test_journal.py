"""rollout.journal: nothing finished is lost, nothing torn is used, every float comes back bit for bit."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fs_ops
from vlmrl.errors import CheckpointError, StorageError
from vlmrl.rollout.journal import Journal, drop_before, rollout_from_json, rollout_to_json, scores_from_json, scores_to_json
from vlmrl.types import Guidance, Rollout, Scores


def bits(x: float) -> bytes:
    return struct.pack(">d", x)


def record(i: int) -> dict[str, Any]:
    return {"group": f"g{i}", "sample": f"s{i}", "rollouts": [{"text": "ab\n\0 \ud800 é" * i}], "n": i}


def filled(folder: Path, n: int) -> Journal:
    journal = Journal(folder, 7)
    for i in range(n):
        journal.append(record(i))
    journal.finish()
    return journal


def test_append_then_replay_in_order(tmp_path: Path) -> None:
    journal = filled(tmp_path, 3)
    assert journal.replay() == [record(0), record(1), record(2)]
    again = Journal(tmp_path, 7)
    assert again.replay() == journal.replay()
    assert again.dropped_bytes == 0
    again.append(record(3))
    assert Journal(tmp_path, 7).replay() == [record(i) for i in range(4)]


def test_steps_and_ranks_are_separate(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    assert Journal(tmp_path, 8).replay() == []
    assert Journal(tmp_path, 7, 1).replay() == []
    assert len(list(tmp_path.iterdir())) == 3


def test_torn_at_every_byte(tmp_path: Path) -> None:
    """Whatever length survives, the replay is the longest whole prefix, and appending the rest gives the original file."""
    filled(tmp_path / "full", 3)
    whole = next((tmp_path / "full").iterdir()).read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    assert len(ends) == 4
    for cut in range(len(whole) + 1):
        folder = tmp_path / "cut"
        folder.mkdir(exist_ok=True)
        path = folder / "step-00000007.rank-0.journal"
        path.write_bytes(whole[:cut])
        journal = Journal(folder, 7)
        survivors = max(0, sum(end <= cut for end in ends) - 1)
        assert journal.replay() == [record(i) for i in range(survivors)], cut
        assert journal.dropped_bytes == cut - max([end for end in ends if end <= cut], default=0)
        for i in range(survivors, 3):
            journal.append(record(i))
        assert path.read_bytes() == whole


def test_a_flipped_byte_anywhere_drops_that_record_and_the_rest(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for place in range(ends[0], len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        survivors = sum(end <= place for end in ends) - 1
        assert Journal(tmp_path, 7).replay() == [record(i) for i in range(survivors)], place


@pytest.mark.parametrize("tail", [b"\0" * 300, b"0000ffff 00000000 {}", b"00000002 4343", b"\n", b"garbage\n"])
def test_garbage_after_a_power_cut_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    filled(tmp_path, 2)
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    journal = Journal(tmp_path, 7)
    assert journal.replay() == [record(0), record(1)]
    assert journal.dropped_bytes == len(tail)
    assert path.read_bytes() == whole


def test_a_missing_or_repeated_record_ends_the_replay(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    path = next(tmp_path.iterdir())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1], lines[3]]))
    assert Journal(tmp_path, 7).replay() == [record(0)]
    path.write_bytes(b"".join([lines[0], lines[1], lines[1], lines[2]]))
    assert Journal(tmp_path, 7).replay() == [record(0)]


def test_a_file_of_another_step_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    next(tmp_path.iterdir()).rename(tmp_path / "step-00000009.rank-0.journal")
    with pytest.raises(CheckpointError, match=r"belongs to \{'global_step': 7, 'rank': 0\}"):
        Journal(tmp_path, 9)


def test_a_newer_schema_names_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmrl.rollout.journal.SCHEMA", 5)
    filled(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="schema 5, this version reads 4"):
        Journal(tmp_path, 7)


@pytest.mark.parametrize("bad", [{}, {"group": "g"}, {"sample": "s"}, {"group": 1, "sample": "s"}, {"group": "g", "sample": "s", "seq": 0}])
def test_records_need_their_ids(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs texts 'group' and 'sample'"):
        Journal(tmp_path, 0).append(bad)


def test_synced_at_most_every_second_and_at_the_end(tmp_path: Path) -> None:
    now = [0.0]
    journal = Journal(tmp_path, 0, clock=lambda: now[0])
    with fs_ops.record() as log:
        for now[0] in (0.2, 0.9, 1.0, 1.5, 2.5):
            journal.append(record(0))
        journal.append(record(1))
        journal.finish()
    assert "".join({"write": "w", "fsync": "s"}[op.kind] for op in log) == "wwwswwsws"


def test_a_full_disk_leaves_the_records_before(tmp_path: Path) -> None:
    journal = filled(tmp_path, 2)
    with fs_ops.fail_at(1), pytest.raises(StorageError):
        journal.append(record(2))
    assert journal.replay() == [record(0), record(1)]
    journal.append(record(2))
    assert Journal(tmp_path, 7).replay() == [record(0), record(1), record(2)]


def test_drop_before_keeps_later_steps_and_foreign_files(tmp_path: Path) -> None:
    for step in (3, 4, 5):
        for rank in (0, 1):
            Journal(tmp_path, step, rank)
    (tmp_path / "notes.txt").write_text("mine")
    assert drop_before(tmp_path, 5) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "step-00000005.rank-0.journal", "step-00000005.rank-1.journal"]
    assert drop_before(tmp_path, 5) == 0
    assert drop_before(tmp_path / "absent", 5) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**31), st.floats())), st.text(), st.sampled_from(["stop", "length"]))
def test_rollouts_come_back_bit_for_bit(tokens: list[tuple[int, float]], text: str, finish: Any) -> None:
    rollout = Rollout(
        k=3, ids=tuple(i for i, _ in tokens), logprobs=tuple(x for _, x in tokens), text=text, finish=finish, policy_version=9
    )
    back = rollout_from_json(rollout_to_json(rollout))
    assert [x if math.isnan(x) else bits(x) for x in back.logprobs if not math.isnan(x)] == [
        bits(x) for x in rollout.logprobs if not math.isnan(x)
    ]
    assert [math.isnan(x) for x in back.logprobs] == [math.isnan(x) for x in rollout.logprobs]
    assert (back.ids, back.text, back.finish, back.k, back.policy_version, back.provenance) == (rollout.ids, text, finish, 3, 9, "policy")


def test_rollouts_and_scores_through_a_file(tmp_path: Path) -> None:
    rollout = Rollout(k=0, ids=(1, 2), logprobs=(-0.1, -5e-324), text="ü", finish="length", policy_version=2)
    truth = Rollout(k=1, ids=(1,), logprobs=(), text="", finish="stop", policy_version=2, provenance="ground_truth")
    guidance = Guidance(question="ü?\nHint: x", tier=3, train="plain", old="sampler")
    helped = replace(rollout, k=2, provenance="guided", guidance=guidance)
    replayed = replace(rollout, k=3, provenance="replay", policy_version=1)
    rows = [rollout, truth, helped, replayed]
    scores = Scores(columns=("a", "b"), weights=(0.1, 1), rewards_GK=((0.1 + 0.2, None), (-0.0, 1)), reasons={"b/timeout": 1})
    journal = Journal(tmp_path, 1)
    journal.append({"group": "g", "sample": "s", "rollouts": [rollout_to_json(r) for r in rows], "scores": scores_to_json(scores)})
    (back,) = Journal(tmp_path, 1).replay()
    assert [rollout_from_json(r) for r in back["rollouts"]] == rows
    with pytest.raises(CheckpointError, match=r"of a Guidance: missing \['tier'\]"):
        rollout_from_json(rollout_to_json(helped) | {"guidance": {"question": "q", "train": "plain", "old": "policy"}})
    again = scores_from_json(back["scores"])
    assert again == scores
    assert again.rewards_GK[1][0] is not None
    assert bits(again.rewards_GK[1][0]) == bits(-0.0)


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_payloads_are_strict(change: str) -> None:
    rollout = rollout_to_json(Rollout(k=0, ids=(), logprobs=(), text="", finish="stop", policy_version=0))
    scores = scores_to_json(Scores(columns=(), weights=(), rewards_GK=()))
    for value, load, key in ((rollout, rollout_from_json, "text"), (scores, scores_from_json, "reasons")):
        if change == "missing":
            del value[key]
        else:
            value["novelty"] = 1
        with pytest.raises(CheckpointError, match=f"missing \\['{key}'\\]" if change == "missing" else r"unknown \['novelty'\]"):
            load(value)
