"""train.state.UsedMedia: a medium that is used again is the medium that was used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from vlmrl.errors import CheckpointError
from vlmrl.train.state import UsedMedia
from vlmrl.types import MediaHandle, MediaRef

A, B = (MediaRef(kind="image", path=f"{name}.png") for name in "ab")


@dataclass
class Entry:
    handle: MediaHandle


class Store:
    """Gives media with the keys that it is told."""

    def __init__(self, **keys: str):
        self.keys = keys

    def get(self, ref: MediaRef, root: Path) -> Entry:
        return Entry(MediaHandle(kind="image", key=self.keys[ref.path[0]] * 64, grid_thw=(1, 2, 2), tokens=1))

    def plan(self, ref: MediaRef, root: Path) -> str:
        return "planned"


def used(folder: Path, **more: object) -> UsedMedia:
    return UsedMedia(folder / "inputs", data_root=folder / "data", **more)


def test_a_medium_that_changed_is_refused_within_a_process_and_after_a_restart(tmp_path: Path) -> None:
    root = tmp_path / "data" / "pictures"
    mine = used(tmp_path)
    assert mine.of(Store(a="1")).get(A, root).handle.key == "1" * 64
    assert mine.of(Store()).plan(A, root) == "planned"
    for start in range(2):
        again = used(tmp_path) if start else mine
        again.of(Store(a="1")).get(A, root)
        with pytest.raises(CheckpointError, match=r"pictures/a\.png: the content of this medium.*data.changed: accept"):
            again.of(Store(a="2")).get(A, root)
        again.of(Store(b="2")).get(B, root)
        again.of(Store(a="2"), "suite charts: ").get(A, root)  # other settings of processing
    assert mine.path.read_bytes().count(b"\n") == 3, "each medium once"


def test_data_may_move_and_ranks_know_of_each_other(tmp_path: Path) -> None:
    first = UsedMedia(tmp_path / "inputs", rank=1, data_root=tmp_path / "here")
    first.of(Store(a="1")).get(A, tmp_path / "here" / "x")
    second = UsedMedia(tmp_path / "inputs", rank=0, data_root=tmp_path / "there")
    second.of(Store(a="1")).get(A, tmp_path / "there" / "x")
    with pytest.raises(CheckpointError, match=r"x/a\.png"):
        second.of(Store(a="2")).get(A, tmp_path / "there" / "x")


def test_an_accepted_change_is_noted_and_kept(tmp_path: Path) -> None:
    used(tmp_path).of(Store(a="1")).get(A, tmp_path)
    notes: list[str] = []
    accepting = used(tmp_path, accept=True, note=notes.append).of(Store(a="2"))
    accepting.get(A, tmp_path)
    accepting.get(A, tmp_path)
    assert len(notes) == 1
    assert "a.png: the content of this medium" in notes[0]
    used(tmp_path).of(Store(a="2")).get(A, tmp_path)
    with pytest.raises(CheckpointError):
        used(tmp_path).of(Store(a="1")).get(A, tmp_path)


def test_a_torn_line_is_cut_and_any_other_damage_is_refused(tmp_path: Path) -> None:
    mine = used(tmp_path)
    mine.of(Store(a="1")).get(A, tmp_path)
    saved = mine.state_dict()
    mine.of(Store(b="1")).get(B, tmp_path)
    whole = mine.path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        mine.path.write_bytes(whole[:end])
        used(tmp_path, saved=saved)
        assert mine.path.read_bytes() == whole[:first]
    for place in range(len(whole) - 1):
        mine.path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=r"media\.rank-0\.log"):
            used(tmp_path, saved=saved)
    mine.path.unlink()
    with pytest.raises(CheckpointError, match="missing, cut"):
        used(tmp_path, saved=saved)
