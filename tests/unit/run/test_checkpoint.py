"""run.checkpoint at rest: what is saved comes back, what is damaged is found, what is newer is refused.

Crashes in the middle are in tests/faults/test_checkpoint_protocol.py.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fs_ops
from vlmrl import fs
from vlmrl.errors import CheckpointError, StorageError
from vlmrl.run import checkpoint


def weights(number: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        fs.write_bytes(folder / "model.bin", b"model %d" % number)
        fs.mkdir(folder / "optimizer")
        fs.write_bytes(folder / "optimizer" / "a.bin", b"first %d" % number)
        fs.write_bytes(folder / "optimizer" / "b.bin", b"other %d" % number)

    return write


def save(folder: Path, number: int, keep: int = 10, **kw: Any) -> Path:
    options: dict[str, Any] = {"write_tensors": weights(number), "state": {"step": number}, "manifest_extra": {"world_size": 1}, **kw}
    return checkpoint.save(folder, step_name=checkpoint.step_name(number), keep=keep, **options)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    path = save(folder, 200, state={"step": 200, "ledger": {"a": [0.1, None]}, "third": 1 / 3})
    assert path == folder / "step-00000200"
    assert checkpoint.latest(folder) == checkpoint.LatestCheckpoint(path=path, notes=[])
    assert checkpoint.verify(path) == []
    assert checkpoint.load_state(path) == {"step": 200, "ledger": {"a": [0.1, None]}, "third": 1 / 3}
    manifest = checkpoint.read_manifest(path)
    assert manifest["schema"] == 2
    assert manifest["extra"] == {"world_size": 1}
    assert [entry["path"] for entry in manifest["files"]] == ["model.bin", "optimizer/a.bin", "optimizer/b.bin", "state.json"]
    # sha256 of b"model 200", computed with the sha256sum tool.
    assert manifest["files"][0]["size"] == 9
    assert manifest["files"][0]["sha256"] == "ca1fda4974a4d17a6c7dfd2a66ea9ac76c50a3a73e59cb058eba3145c427863c"


def test_latest_is_the_highest_step_not_the_last_written(tmp_path: Path) -> None:
    for number in (9, 100, 20):
        save(tmp_path, number)
    assert checkpoint.latest(tmp_path).path == tmp_path / "step-00000100"
    assert [p.name for p in checkpoint.steps(tmp_path)] == ["step-00000009", "step-00000020", "step-00000100"]


def test_nothing_there(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "absent").path is None
    (tmp_path / "step-12").mkdir()
    (tmp_path / "tmp-step-00000001-aa").mkdir()
    (tmp_path / "step-00000003").write_text("a file")
    assert checkpoint.latest(tmp_path).path is None
    assert checkpoint.steps(tmp_path) == []


@pytest.mark.parametrize("number", [-1, 10**8])
def test_step_names_sort(number: int) -> None:
    assert checkpoint.step_number(checkpoint.step_name(7)) == 7
    assert checkpoint.step_number("step-7") is None
    with pytest.raises(ValueError, match="outside"):
        checkpoint.step_name(number)


@pytest.mark.parametrize(
    ("state", "key"),
    [({"a": (1, 2)}, "changes in JSON under a"), ({"b": {1: 2}}, "changes in JSON under b"), ({"c": float("nan")}, "not plain JSON"),
     ({"d": object()}, "not plain JSON"), ({7: 1}, "changes in JSON under 7")],
)  # fmt: skip
def test_state_that_json_would_change_is_refused(tmp_path: Path, state: dict[Any, Any], key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        save(tmp_path, 1, state=state)
    assert names(tmp_path) == []


FILES = ["manifest.json", "state.json", "model.bin", "optimizer/a.bin", "optimizer/b.bin"]


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def swap_shards(path: Path) -> None:
    other = path.with_name("b.bin" if path.name == "a.bin" else "a.bin")
    a, b = path.read_bytes(), other.read_bytes()
    path.write_bytes(b)
    other.write_bytes(a)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "flip": flip,
    "truncate": lambda p: os.truncate(p, p.stat().st_size - 1),
    "empty": lambda p: os.truncate(p, 0),
    "grow": lambda p: p.write_bytes(p.read_bytes() + b"\0"),
    "delete": Path.unlink,
    "link": lambda p: (p.rename(p.with_name("moved")), p.symlink_to("moved")),
}


@pytest.mark.parametrize(
    ("damage", "name"), [*((damage, name) for damage in DAMAGE for name in FILES), ("swap", "optimizer/a.bin"), ("swap", "optimizer/b.bin")]
)
def test_damage_to_any_file_is_found(tmp_path: Path, name: str, damage: str) -> None:
    save(tmp_path, 1)
    bad = save(tmp_path, 2)
    {**DAMAGE, "swap": swap_shards}[damage](bad / name)
    assert any(name in problem for problem in checkpoint.verify(bad))
    found = checkpoint.latest(tmp_path)
    assert found.path == tmp_path / "step-00000001"
    assert len(found.notes) == 1
    assert "step-00000002 is damaged and was renamed to bad-step-00000002-" in found.notes[0]
    assert name in found.notes[0]
    assert [n[:17] for n in names(tmp_path)] == ["bad-step-00000002", "step-00000001"]
    assert checkpoint.latest(tmp_path).notes == []


def test_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    file = path / "manifest.json"
    whole = file.read_bytes()
    for place in range(len(whole)):
        for mask in (1, 32):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
            assert checkpoint.verify(path) != [], place
    file.write_bytes(whole)
    assert checkpoint.verify(path) == []


def test_a_stray_file_is_not_loaded_unseen(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "pytorch_model.bin").write_bytes(b"pickle")
    assert checkpoint.verify(path) == ["pytorch_model.bin: is not in the manifest"]


def test_a_manifest_of_another_step_does_not_fit(tmp_path: Path) -> None:
    save(tmp_path, 1).rename(tmp_path / "step-00000002")
    assert checkpoint.verify(tmp_path / "step-00000002") == ["manifest.json: belongs to 'step-00000001'"]


def test_all_damaged_is_none_and_says_so(tmp_path: Path) -> None:
    for number in (1, 2):
        flip(save(tmp_path, number) / "model.bin")
    found = checkpoint.latest(tmp_path)
    assert found.path is None
    assert len(found.notes) == 2


def test_a_newer_schema_is_refused_with_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "SCHEMA", 4)
    save(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="schema 4, this version reads up to 2"):
        checkpoint.latest(tmp_path)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_load_state_notices_damage(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "state.json").write_bytes(b'{"step": 9}')
    with pytest.raises(CheckpointError, match=r"state\.json"):
        checkpoint.load_state(path)


def test_files_of_other_libraries_are_synced_before_the_manifest(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "shard").write_bytes(b"x")

    with fs_ops.record() as log:
        path = save(tmp_path, 1, write_tensors=write)
    assert checkpoint.verify(path) == []
    commit = next(i for i, op in enumerate(log) if "manifest.json" in op.path.name)
    synced = ["/".join(op.path.parts[len(tmp_path.parts) + 1 :]) for op in log[:commit] if op.kind in ("fsync", "fsync_dir")]
    order = [name for name in synced if name in ("deep/er/shard", "deep/er", "deep")]
    assert order == ["deep/er/shard", "deep/er", "deep"]
    assert synced[-1] == "", "the folder itself comes last"


def test_links_written_by_the_caller_are_refused(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "link").symlink_to("/etc/hostname")

    with pytest.raises(CheckpointError, match="plain files only"):
        save(tmp_path, 1, write_tensors=write)
    assert names(tmp_path) == []


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 1, state={"again": True})
    assert names(tmp_path) == ["step-00000001"]
    assert checkpoint.load_state(tmp_path / "step-00000001") == {"again": True}


def test_a_damaged_folder_in_the_way_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip(save(tmp_path, 1) / "model.bin")
    with caplog.at_level(logging.WARNING):
        save(tmp_path, 1)
    assert "damaged and was renamed to bad-step-00000001" in caplog.text
    assert checkpoint.verify(tmp_path / "step-00000001") == []
    assert len(names(tmp_path)) == 2


def test_too_little_space_is_noticed_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 1)
    need = int(1.2 * sum(p.stat().st_size for p in path.rglob("*") if p.is_file()))
    monkeypatch.setattr(fs, "free_bytes", lambda _: need - 1)
    with fs_ops.record() as log, pytest.raises(StorageError, match=f"{need - 1} bytes free, a checkpoint needs about {need}"):
        save(tmp_path, 2)
    assert log == []
    monkeypatch.setattr(fs, "free_bytes", lambda _: need)
    save(tmp_path, 2)


def test_other_ranks_write_nothing_and_learn_of_failure(tmp_path: Path) -> None:
    class Second:
        """Rank 1 of two; rank 0 has made the folder `there`."""

        def __init__(self, failed: bool):
            self.failed = failed

        def on_main(self, fn: Callable[[], Any]) -> None:
            if self.failed:
                raise StorageError("rank 0 failed")

        def gather(self, value: Any) -> list[Any]:
            assert value is None
            return [tmp_path / "there", value]

    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "of-rank-0").write_bytes(b"")
    seen: list[Path] = []
    assert save(tmp_path, 1, write_tensors=seen.append, collective=Second(failed=False)) == tmp_path / "step-00000001"
    assert seen == [tmp_path / "there"]
    assert names(tmp_path) == ["there"]
    with pytest.raises(StorageError, match="rank 0 failed"):
        save(tmp_path, 1, write_tensors=seen.append, collective=Second(failed=True))
    assert (tmp_path / "there" / "of-rank-0").exists()  # its own rank takes it away


def test_errors_of_the_writer_rise_and_leave_nothing(tmp_path: Path) -> None:
    def breaks(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise ValueError("no such tensor")

    save(tmp_path, 1)
    with pytest.raises(ValueError, match="no such tensor"):
        save(tmp_path, 2, write_tensors=breaks)
    assert names(tmp_path) == ["step-00000001"]


def test_a_failed_delete_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)

    def refuse(path: Path) -> None:
        raise StorageError(f"{path}: unlink failed: busy")

    monkeypatch.setattr(fs, "remove_tree", refuse)
    with caplog.at_level(logging.WARNING):
        save(tmp_path, 2, keep=1)
    assert "old checkpoint not deleted" in caplog.text
    assert checkpoint.latest(tmp_path).path == tmp_path / "step-00000002"


@pytest.mark.parametrize("bad", [{"step_name": "latest"}, {"keep": 0}])
def test_arguments_are_checked(tmp_path: Path, bad: dict[str, Any]) -> None:
    options: dict[str, Any] = {"step_name": "step-00000001", "keep": 1, **bad}
    with pytest.raises(ValueError, match="must be like"):
        checkpoint.save(tmp_path, write_tensors=weights(1), state={}, manifest_extra={}, **options)


def test_retention_keeps_an_older_valid_one_when_the_newer_are_damaged(tmp_path: Path) -> None:
    for number in (1, 2, 3, 4):
        save(tmp_path, number)
    for number in (3, 4):
        flip(tmp_path / checkpoint.step_name(number) / "model.bin")
    assert checkpoint.retain(tmp_path, 1) == []
    assert names(tmp_path) == ["step-00000002", "step-00000004"]
    assert checkpoint.latest(tmp_path).path == tmp_path / "step-00000002"


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["save", "fail", "flip", "retain"]), st.integers(0, 5)), max_size=9))
def test_retention_never_loses_the_last_valid_one(
    tmp_path_factory: pytest.TempPathFactory, keep: int, events: list[tuple[str, int]]
) -> None:
    """Random saves, failed saves, damage and retention against a set of the steps that are known to be whole."""
    folder = tmp_path_factory.mktemp("c")
    whole: set[int] = set()
    for number, (kind, which) in enumerate(events, start=1):
        existing = checkpoint.steps(folder)
        if kind == "save":
            save(folder, number, keep=keep)
            whole.add(number)
        elif kind == "fail":
            with fs_ops.fail_at(which + 1, sticky=True), pytest.raises(StorageError):
                save(folder, number, keep=keep)
        elif kind == "flip" and existing:
            victim = existing[which % len(existing)]
            if checkpoint.verify(victim) == []:
                flip(victim / "model.bin")
            whole.discard(checkpoint.step_number(victim.name) or 0)
        elif kind == "retain":
            checkpoint.retain(folder, 1)
        valid = {checkpoint.step_number(p.name) for p in checkpoint.steps(folder) if not checkpoint.verify(p)}
        assert bool(valid) == bool(whole), "something valid existed, so something valid must still exist"
        if whole:
            assert max(whole) in valid
        whole &= valid  # older ones may have been retired
        assert len(checkpoint.steps(folder)) <= keep + 1 + sum(kind == "flip" for kind, _ in events)
        assert not [n for n in names(folder) if n.startswith(("tmp-", "old-"))]


def test_the_manifest_is_plain_json(tmp_path: Path) -> None:
    manifest = json.loads((save(tmp_path, 1) / "manifest.json").read_text())
    assert sorted(manifest) == ["digest", "extra", "files", "name", "schema"]
