"""The checkpoint protocol against power cuts, full disks and SIGKILL.

The operations that `fs` records are replayed on a model of a disk that keeps what was synced and may lose, tear or zero what was
not. Every state that a power cut could leave is built as a real folder, and the latest checkpoint must load from it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import fs_ops
from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.rollout.journal import Journal
from vlmrl.run import checkpoint


@dataclass(eq=False)
class File:
    live: bytes = b""
    synced: bytes = b""

    def after_cut(self, unsynced: str) -> bytes:
        if self.live == self.synced or unsynced == "kept":
            return self.live
        if unsynced == "lost":
            return self.synced
        if unsynced == "torn":
            return self.live[: (len(self.synced) + len(self.live)) // 2]
        return self.synced + b"\0" * (len(self.live) - len(self.synced))  # the length reached the disk, the data did not


@dataclass(eq=False)
class Folder:
    live: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)


Snapshot = dict[str, Any]


class Disk:
    """Names and contents, live and durable. Changes of names that are not synced yet survive, for each folder by itself, as any prefix of
    their order."""

    def __init__(self, root: Path):
        self.root = root
        self.top = Folder()
        self.pending: list[tuple[Folder, dict[str, File | Folder | None]]] = []

    def find(self, path: Path) -> Any:
        node: Any = self.top
        for part in path.relative_to(self.root).parts:
            node = node.live[part]
        return node

    def change(self, parent: Folder, names: dict[str, File | Folder | None]) -> None:
        _apply(parent.live, names)
        self.pending.append((parent, names))

    def do(self, op: fs.Op) -> None:
        parent = self.find(op.path.parent) if op.path != self.root else None
        if op.kind == "create":
            assert op.path.name not in parent.live
            self.change(parent, {op.path.name: File()})
        elif op.kind == "mkdir":
            self.change(parent, {op.path.name: Folder()})
        elif op.kind == "write":
            self.find(op.path).live += op.data
        elif op.kind == "truncate":
            node = self.find(op.path)
            node.live = node.synced = node.live[: op.size]
        elif op.kind == "fsync":
            node = self.find(op.path)
            node.synced = node.live
        elif op.kind == "rename":
            assert op.target is not None
            assert op.target.parent == op.path.parent
            target = parent.live.get(op.target.name)
            assert not isinstance(target, Folder), "a folder in the way would make the rename fail"
            self.change(parent, {op.path.name: None, op.target.name: parent.live[op.path.name]})
        elif op.kind in ("unlink", "rmdir"):
            if op.kind == "rmdir":
                assert not parent.live[op.path.name].live, "the folder is not empty"
            self.change(parent, {op.path.name: None})
        elif op.kind == "fsync_dir":
            node = self.find(op.path)
            node.synced = dict(node.live)
            self.pending = [(folder, names) for folder, names in self.pending if folder is not node]
        else:
            raise AssertionError(op.kind)

    def cuts(self) -> Iterator[Snapshot]:
        """Every tree that a power cut now could leave."""
        folders = list({id(folder): folder for folder, _ in self.pending}.values())
        changes = [[change for where, change in self.pending if where is folder] for folder in folders]
        for counts in itertools.product(*(range(len(c) + 1) for c in changes)):
            survivors = {id(f): c[:n] for f, c, n in zip(folders, changes, counts, strict=True)}
            for unsynced in ("kept", "lost", "torn", "zeroed"):
                yield self._tree(self.top, survivors, unsynced)

    def _tree(self, folder: Folder, survivors: dict[int, list[dict[str, File | Folder | None]]], unsynced: str) -> Snapshot:
        names = dict(folder.synced)
        for change in survivors.get(id(folder), []):
            _apply(names, change)
        return {k: v.after_cut(unsynced) if isinstance(v, File) else self._tree(v, survivors, unsynced) for k, v in names.items()}


def _apply(names: dict[str, File | Folder], change: dict[str, File | Folder | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def build(snapshot: Snapshot, folder: Path) -> None:
    folder.mkdir()
    for name, content in snapshot.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            build(content, folder / name)


def frozen(snapshot: Snapshot) -> Any:
    return tuple(sorted((name, content if isinstance(content, bytes) else frozen(content)) for name, content in snapshot.items()))


@pytest.fixture(autouse=True)
def _fast_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real disk need not be slow here: what a sync means is the model's business."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def weights(tag: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        fs.write_bytes(folder / "model.bin", f"model {tag}".encode())
        fs.mkdir(folder / "optimizer")
        fs.write_bytes(folder / "optimizer" / "a.bin", f"moments {tag}".encode())

    return write


def save(folder: Path, number: int, keep: int, tag: str = "") -> None:
    checkpoint.save(
        folder,
        step_name=checkpoint.step_name(number),
        write_tensors=weights(f"{number}{tag}"),
        state={"step": number, "tag": tag},
        manifest_extra={},
        keep=keep,
    )


def content(path: Path) -> tuple[int, str]:
    """(step, tag) of a checkpoint whose three files agree."""
    state = checkpoint.load_state(path)
    text = f"{state['step']}{state['tag']}"
    assert (path / "model.bin").read_text() == f"model {text}"
    assert (path / "optimizer" / "a.bin").read_text() == f"moments {text}"
    return state["step"], state["tag"]


SCENARIOS = {
    "three saves": [(1, ""), (2, ""), (3, "")],
    "a step saved again": [(1, ""), (2, ""), (2, "again")],
    "the only step saved again": [(1, ""), (1, "again"), (1, "third")],
}


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_power_cut_at_any_operation_leaves_a_loadable_latest(tmp_path: Path, scenario: str, keep: int) -> None:
    root = tmp_path / "run"
    root.mkdir()
    committed: list[int] = []
    plan = SCENARIOS[scenario]
    with fs_ops.record() as log:
        for number, tag in plan:
            save(root / "checkpoints", number, keep, tag)
            committed.append(len(log))
    disk = Disk(root)
    states = 0
    seen: set[Any] = set()
    for count, op in enumerate([None, *log]):
        if op is not None:
            disk.do(op)
        done = sum(end <= count for end in committed)
        allowed = [plan[i] for i in range(len(plan)) if i in (done - 1, done)]
        for snapshot in disk.cuts():
            key = (done, frozen(snapshot))
            if key in seen:
                continue
            seen.add(key)
            states += 1
            place = tmp_path / f"cut{states}"
            build(snapshot, place)
            folder = place / "checkpoints"
            for leftover in folder.glob(f"{fs.TEMPORARY}*"):  # as opening the run does
                fs.remove_tree(leftover)
            found = checkpoint.latest(folder)
            where = f"after operation {count}: {op}"
            assert found.notes == [], where
            assert [p.name for p in checkpoint.steps(folder) if checkpoint.verify(p)] == [], f"half a checkpoint {where}"
            if found.path is None:
                assert done == 0, where
            else:
                assert content(found.path) in allowed, where
            # The same step can be saved again from whatever was left, and then it is the latest.
            if states % 5 == 0:
                save(folder, 3, keep, "resumed")
                path = checkpoint.latest(folder).path
                assert path is not None
                assert content(path) == (3, "resumed"), where
            shutil.rmtree(place)
    assert states > 60
    assert frozen(next(iter(disk.cuts()))) is not None
    assert disk.find(root / "checkpoints").live.keys() == {p.name for p in (root / "checkpoints").iterdir()}, "the model follows the disk"


@pytest.mark.slow
def test_the_model_finds_a_protocol_without_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: without the syncs of files and folders some cut leaves nothing that loads."""
    root = tmp_path / "run"
    root.mkdir()
    with fs_ops.record() as log:
        for number in (1, 2):
            save(root / "checkpoints", number, keep=1)
    for removed in ("fsync", "fsync_dir"):
        disk = Disk(root)
        lost = 0
        for op in log:
            if op.kind != removed:
                disk.do(op)
        for i, snapshot in enumerate(disk.cuts()):
            place = tmp_path / f"{removed}{i}"
            build(snapshot, place)
            lost += checkpoint.latest(place / "checkpoints").path is None
        assert lost > 0, removed


def operations_of_a_save(tmp_path: Path, again: bool) -> int:
    probe = tmp_path / "probe"
    save(probe, 1, 1)
    with fs_ops.record() as log:
        save(probe, 1 if again else 2, 1)
    return len(log)


@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_full_disk_at_any_operation(tmp_path: Path, again: bool, sticky: bool) -> None:
    """Either StorageError with the former checkpoint as the latest, or the new one is committed; the next save works."""
    failed = 0
    for n in range(1, operations_of_a_save(tmp_path, again) + 1):
        folder = tmp_path / f"n{n}"
        save(folder, 1, 1)
        number = 1 if again else 2
        error: StorageError | None = None
        with fs_ops.fail_at(n, sticky=sticky):
            try:
                save(folder, number, 1, "new")
            except StorageError as caught:
                error = caught
        failed += error is not None
        if not (sticky and again):  # there even the rename back is refused, and `latest` does it at the next start
            assert (folder / "step-00000001").exists() or (folder / "step-00000002").exists()
        if error is not None:
            assert "No space left" in str(error)
            assert not [p for p in folder.iterdir() if p.name.startswith("tmp-")], "a failed save removes what it wrote"
        found = checkpoint.latest(folder)
        assert found.path is not None
        assert found.notes == []
        assert content(found.path) in [(1, ""), (number, "new")]
        if error is None:
            assert content(found.path) == (number, "new")
        save(folder, 3, 1)
        assert checkpoint.latest(folder).path == folder / "step-00000003"
    assert failed > 10


CHILD = """
import sys
from pathlib import Path
from vlmrl import fs
from vlmrl.run import checkpoint
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
for leftover in folder.glob(f"{fs.TEMPORARY}*"):
    fs.remove_tree(leftover)
found = checkpoint.latest(folder)
assert not found.notes, found.notes
checkpoint.retain(folder, 1)
value = checkpoint.load_state(found.path)["value"] if found.path else 1
start = checkpoint.step_number(found.path.name) if found.path else 0
for step in range(start + 1, steps + 1):
    value = value * 6364136223846793005 % 2**61 + step
    checkpoint.save(folder, step_name=checkpoint.step_name(step), keep=1, state={"value": value}, manifest_extra={},
        write_tensors=lambda tmp: fs.write_bytes(tmp / "model.bin", str(value).encode()))
print(value)
"""


def child(folder: Path, fault: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "VLMRL_FAULT"} | ({"VLMRL_FAULT": fault} if fault else {})
    return subprocess.run([sys.executable, "-c", CHILD, str(folder), "4"], capture_output=True, text=True, env=environment, timeout=120)


POINTS = ["ckpt.start", "ckpt.after_tensors", "ckpt.after_manifest", "ckpt.after_rename", "ckpt.after_retention"]


@pytest.mark.parametrize("point", POINTS)
def test_sigkill_at_each_point_then_resume_gives_the_same_result(tmp_path: Path, point: str) -> None:
    value = 1
    for step in range(1, 5):
        value = value * 6364136223846793005 % 2**61 + step
    for nth in (1, 2, 3):
        folder = tmp_path / f"kill{nth}"
        killed = child(folder, f"{point}@{nth}:kill")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        # Killed again in the first save of the second life, then left alone.
        assert child(folder, f"{point}:kill").returncode == -signal.SIGKILL
        resumed = child(folder, None)
        assert resumed.returncode == 0, resumed.stderr
        assert resumed.stdout.strip() == str(value)
        assert [p.name for p in folder.iterdir()] == ["step-00000004"]


@pytest.mark.parametrize("action", ["raise", "enospc"])
@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_each_point_leaves_a_usable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, action: str) -> None:
    from vlmrl import faults

    save(tmp_path, 1, 1)
    monkeypatch.setattr(faults, "_passed", {})
    monkeypatch.setenv("VLMRL_FAULT", f"{point}:{action}")
    with pytest.raises(StorageError if action == "enospc" else faults.InjectedFault):
        save(tmp_path, 2, 1)
    monkeypatch.delenv("VLMRL_FAULT")
    committed = point in ("ckpt.after_rename", "ckpt.after_retention")
    assert checkpoint.latest(tmp_path).path == tmp_path / ("step-00000002" if committed else "step-00000001")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("tmp-")]
    save(tmp_path, 2, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


def test_a_power_cut_loses_no_synced_journal_record(tmp_path: Path) -> None:
    """Records up to the last sync are there after any cut, the others are whole or absent."""
    root = tmp_path / "run"
    root.mkdir()
    now = [0.0]
    synced_after: list[tuple[int, int]] = []
    with fs_ops.record() as log:
        journal = Journal(root / "journal", 5, clock=lambda: now[0])
        for i in range(6):
            now[0] += 0.6
            journal.append({"group": f"g{i}", "sample": "s", "text": "x" * 5 * i})
            if log[-1].kind == "fsync":
                synced_after.append((len(log), i + 1))
        journal.finish()
        synced_after.append((len(log), 6))
    assert [records for _, records in synced_after] == [2, 4, 6, 6]
    disk = Disk(root)
    states = 0
    for count, op in enumerate(log, start=1):
        disk.do(op)
        for snapshot in disk.cuts():
            states += 1
            place = tmp_path / f"cut{states}"
            build(snapshot, place)
            records = Journal(place / "journal", 5).replay()
            assert [r["group"] for r in records] == [f"g{i}" for i in range(len(records))]
            assert len(records) >= max([n for end, n in synced_after if end <= count], default=0), (count, op)
    assert states > 40
