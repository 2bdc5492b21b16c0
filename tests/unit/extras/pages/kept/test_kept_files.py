"""Kept groups on disk: what is written is read, torn files are mended, and the budget thins the run evenly."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.kept import group, key_of, pixels, record
from vlmrl.errors import StorageError
from vlmrl.extras.pages.kept import media
from vlmrl.extras.pages.kept.read import KeptGroups, index_path, shard_path
from vlmrl.extras.pages.kept.record import completions, line_of, pick, summary, surprise
from vlmrl.extras.pages.kept.write import KeptWriter, closest

BUDGET = 1 << 30


def writer(root: Path, *, last_step: int = 0, budget: int = BUDGET) -> KeptWriter:
    return KeptWriter(root / "rank-0", budget=budget, last_step=last_step)


def read(root: Path) -> list[tuple[int, str]]:
    kept = KeptGroups(root)
    kept.follow()
    for address, entry in kept.entries():
        assert kept.record(address)["group"] == entry["group"]
    return [(entry["global_step"], entry["group"]) for _, entry in kept.entries()]


def filled(root: Path, steps: int, each: int = 2) -> None:
    w = writer(root)
    for step in range(1, steps + 1):
        for place in range(each):
            w.add(record(step, place), {})
    w.sync()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    assert read(tmp_path) == [(step, f"rl/{step}/{place}") for step in (1, 2, 3) for place in (0, 1)]


def test_a_right_answer_is_right_without_the_bonus_that_it_did_not_get() -> None:
    """Of an exact answer, a bonus for one without a thought, and a price; the first reward that counts says what is right."""
    told = record(1) | {"columns": ["tokens", "exact", "bonus"], "weights": [0.0, 1.0, 0.5]}
    for answer, rewards in zip(told["answers"], ([17.0, 1.0, 0.0], [9.0, 0.0, 0.0], [9.0, None, None]), strict=False):
        answer |= {"rewards": rewards, "reward": None if rewards[1] is None else rewards[1] + 0.5 * rewards[2]}
    told["answers"] = told["answers"][:3]
    assert (summary(told, 0, 1)["right"], summary(told, 0, 1)["best"]) == (1.0, 1.0)
    told["answers"][0] |= {"rewards": [17.0, 1.0, 1.0], "reward": 1.5}
    assert (summary(told, 0, 1)["right"], summary(told, 0, 1)["best"]) == (1.0, 1.5)
    assert summary(told | {"answers": told["answers"][2:]}, 0, 1)["right"] is None


def test_a_resumed_run_writes_no_group_twice(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    before = {path.name: path.read_bytes() for path in (tmp_path / "rank-0").glob("*.jsonl")}
    w = writer(tmp_path, last_step=3)
    assert [step for step, _ in read(tmp_path)] == [1, 1, 2, 2, 3, 3]
    for step in (4, 5):
        for place in (0, 1):
            w.add(record(step, place), {})
    assert {path.name: path.read_bytes() for path in (tmp_path / "rank-0").glob("*.jsonl")} == before


@pytest.mark.parametrize("lost", [1, 7, 400])
def test_a_torn_end_is_cut_off(tmp_path: Path, lost: int) -> None:
    filled(tmp_path, 3)
    shard = shard_path(tmp_path / "rank-0", 0)
    shard.write_bytes(shard.read_bytes()[:-lost])
    whole = shard.read_bytes().rfind(b"\n") + 1
    assert len(read(tmp_path)) == 5, "a reader leaves it out"
    writer(tmp_path, last_step=3)
    assert shard.stat().st_size == whole
    assert len(read(tmp_path)) == 5


@pytest.mark.parametrize("damage", ["gone", "short", "torn", "nonsense"])
def test_the_shard_alone_counts(tmp_path: Path, damage: str) -> None:
    filled(tmp_path, 4)
    expected, index = read(tmp_path), index_path(tmp_path / "rank-0", 0)
    data = index.read_bytes()
    lines = data.splitlines(keepends=True)
    if damage == "gone":
        index.unlink()
    else:
        index.write_bytes({"short": b"".join(lines[:3]), "torn": data[:-9], "nonsense": lines[0] + b"{}\n" + b"".join(lines[2:])}[damage])
    assert read(tmp_path) == expected
    writer(tmp_path, last_step=4)
    assert index.read_bytes() == data


def test_a_reader_follows_and_sees_that_a_run_went_back(tmp_path: Path) -> None:
    w, kept = writer(tmp_path), KeptGroups(tmp_path)
    kept.follow()
    assert len(kept) == 0
    for step in (1, 2, 3):
        w.add(record(step), {})
        kept.follow()
        assert (len(kept), kept.version) == (step, step)
        kept.follow()
        assert kept.version == step, "nothing is new"
    writer(tmp_path, last_step=1)
    kept.follow()
    assert len(kept) == 1
    assert kept.version == 4


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    writer(tmp_path).add(record(1), {})
    shard, kept = shard_path(tmp_path / "rank-0", 0), KeptGroups(tmp_path)
    line = line_of(record(2))
    with shard.open("ab") as file:
        file.write(line[:40])
        file.flush()
        kept.follow()
        assert len(kept) == 1
        file.write(line[40:])
    kept.follow()
    assert len(kept) == 2


def test_the_budget_thins_the_whole_run(tmp_path: Path) -> None:
    budget = 1 << 19
    w = writer(tmp_path, budget=budget)
    for step in range(1, 401):
        shown = pixels(key_of(step), height=112, width=112, colour=step % 250)
        w.add(record(step, media=[shown.handle], texts=["x" * 800, "y"]), {shown.handle.key: media.encoded(shown, 4)})
    kept = KeptGroups(tmp_path)
    kept.follow()
    steps = [entry["global_step"] for _, entry in kept.entries()]
    assert w.bytes() <= budget + (1 << 17)
    assert steps[0] == 1
    assert steps[-1] == 400
    halves = [sum(step <= 200 for step in steps), sum(step > 200 for step in steps)]
    assert min(halves) > 0.3 * len(steps), "not the newest alone"
    shown = {key for _, entry in kept.entries() for key in entry["media"]}
    assert {path.stem for path in (tmp_path / "rank-0" / "media").iterdir()} == shown


def test_media_that_no_group_shows_go_at_the_next_start(tmp_path: Path) -> None:
    w, shown = writer(tmp_path), [pixels(key_of(n)) for n in (1, 2)]
    for step, one in enumerate(shown, start=1):
        assert w.lacks([one.handle.key]) == [one.handle.key]
        w.add(record(step, media=[one.handle]), {one.handle.key: media.encoded(one, 4)})
        assert w.lacks([one.handle.key]) == []
    assert writer(tmp_path, last_step=1).lacks([key_of(1), key_of(2)]) == [key_of(2)]


def test_a_medium_says_which_frames_were_kept(tmp_path: Path) -> None:
    shown = pixels(key_of(1), count=30)
    media.path_of(tmp_path, key_of(1)).write_bytes(media.encoded(shown, 4))
    assert media.encoded(shown, 4) == media.encoded(shown, 4), "the same pixels give the same bytes"
    path = tmp_path / f"{key_of(1)}.zip"
    said = media.Medium(path).info
    assert (said["total"], said["indices"], said["times"]) == (30, [0, 10, 19, 29], [0.0, 5.0, 9.5, 14.5])
    for number, index in enumerate(said["indices"]):
        data, kind = media.Medium(path).frame(number)
        found = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=int)
        assert kind == "image/jpeg"
        assert np.abs(found - shown.frames[index]).mean() < 2
    with pytest.raises(StorageError, match="frame 4 was not kept"):
        media.Medium(path).frame(4)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(StorageError, match="not a kept medium"):
        media.Medium(path)


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "a" * 200, "A" * 64, "0" * 63 + "/"])
def test_nothing_but_a_key_becomes_a_path(tmp_path: Path, key: str) -> None:
    with pytest.raises(StorageError, match="key"):
        media.path_of(tmp_path, key)


def test_the_shard_between_the_closest_goes() -> None:
    assert closest({0: 1, 1: 10, 2: 11, 3: 12, 4: 40}) == 2
    assert closest({0: 1, 5: 100}) is None
    assert closest({0: 1, 1: 2, 2: 3, 3: 4}) == 1, "the oldest of several"


def test_surprise_by_hand() -> None:
    assert surprise([1.0, 0.0, None], 0.25) == 0.75
    assert surprise([None], 0.25) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9)), max_size=12), st.integers(1, 12))
def test_of_the_groups_half_are_the_most_surprising(groups: list[tuple[float, int]], count: int) -> None:
    chosen = pick(groups, count)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, len(groups))
    wanted = sorted((value for value, _ in groups), reverse=True)[: (count + 1) // 2]
    assert all(sum(groups[i][0] >= value for i in chosen) >= n for n, value in enumerate(wanted, start=1))


def test_completions_by_hand() -> None:
    columns, rows = completions([group(3, rewards=(1.0, None), texts=["a", "b"])])
    assert columns == ("step", "stage", "sample", "question", "completion", "score", "total", "advantage", "provenance")
    assert rows == [
        (3, "rl", "row-1", "Where is it?", "a", 1.0, 1.0, 0.5, "policy"),
        (3, "rl", "row-1", "Where is it?", "b", None, None, 0.0, "policy"),
    ]


def test_records_are_json_without_nan(tmp_path: Path) -> None:
    made = record(1, rewards=(None, 1.0))
    made["answers"][0]["logp"] = [None, -0.5]
    found = json.loads(line_of(made))
    assert [answer["reward"] for answer in found["answers"]] == [None, 1.0]
