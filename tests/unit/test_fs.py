"""fs: replacement is one event, appending is all or nothing, and the log and the faults see every operation."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fs_ops
from vlmrl import fs
from vlmrl.errors import StorageError


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    fs.write_bytes(file, b"old, longer")
    fs.write_text(file, "neü\r\n")
    assert file.read_bytes() == "neü\r\n".encode()
    assert names(tmp_path) == ["a.json"]


def test_write_is_create_write_fsync_rename_fsync_dir(tmp_path: Path) -> None:
    with fs_ops.record() as log:
        fs.write_bytes(tmp_path / "a", b"xy")
    assert [op.kind for op in log] == ["create", "write", "fsync", "rename", "fsync_dir"]
    temporary = log[0].path
    assert temporary.name.startswith(fs.TEMPORARY)
    assert temporary.parent == tmp_path
    assert log[1] == fs.Op(kind="write", path=temporary, data=b"xy")
    assert log[3] == fs.Op(kind="rename", path=temporary, target=tmp_path / "a")
    assert log[4].path == tmp_path


def test_nothing_is_recorded_outside_the_block(tmp_path: Path) -> None:
    with fs_ops.record() as outer:
        with fs_ops.record() as inner:
            fs.write_bytes(tmp_path / "a", b"1")
        fs.unlink(tmp_path / "a")
    fs.write_bytes(tmp_path / "b", b"1")
    assert [op.kind for op in outer] == [*(op.kind for op in inner), "unlink"]


@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_failed_write_keeps_old_or_new_content(tmp_path: Path, n: int, sticky: bool) -> None:
    file = tmp_path / "a"
    fs.write_bytes(file, b"old")
    with fs_ops.fail_at(n, sticky=sticky) as fault, pytest.raises(StorageError, match=r"failed: No space left.*free some space"):
        fs.write_bytes(file, b"the new content")
    assert fault.hits >= 1
    # Only the last operation, the sync of the folder, comes after the new content is in place.
    assert file.read_bytes() == (b"the new content" if n == 5 else b"old")
    assert names(tmp_path) == ["a"]
    fs.write_bytes(file, b"again")
    assert file.read_bytes() == b"again"


def test_fault_beyond_the_last_operation_does_nothing(tmp_path: Path) -> None:
    with fs_ops.fail_at(6) as fault:
        fs.write_bytes(tmp_path / "a", b"x")
    assert (fault.seen, fault.hits) == (5, 0)


def test_failed_append_restores_the_length(tmp_path: Path) -> None:
    file = tmp_path / "log"
    fs.append(file, b"one\n")
    with fs_ops.fail_at(1), pytest.raises(StorageError, match="log: write failed"):
        fs.append(file, b"two two two\n")
    assert file.read_bytes() == b"one\n"
    fs.append(file, b"three\n")
    assert file.read_bytes() == b"one\nthree\n"


def test_append_and_sync_are_separate(tmp_path: Path) -> None:
    with fs_ops.record() as log:
        fs.append(tmp_path / "log", b"1")
        fs.append(tmp_path / "log", b"2")
        fs.sync(tmp_path / "log")
    assert [op.kind for op in log] == ["create", "write", "write", "fsync"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device() -> None:
    with pytest.raises(StorageError, match="/dev/full: write failed: No space left") as caught:
        fs.append("/dev/full", b"x")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert caught.value.exit_code == 74


def test_a_real_limit_on_the_file_size(tmp_path: Path) -> None:
    """RLIMIT_FSIZE in a child: the kernel accepts part of the data and then refuses."""
    script = (
        "import sys, resource; from vlmrl import fs; from vlmrl.errors import StorageError\n"
        "for act in (fs.write_bytes, fs.append):\n"
        "    try: act(sys.argv[1], b'x' * 5000)\n"
        "    except StorageError as error: print('refused')\n"
    )
    file = tmp_path / "a"
    fs.write_bytes(file, b"old")
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert done.stdout.split() == ["refused", "refused"]
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_write_with_a_library_writer(tmp_path: Path) -> None:
    with fs_ops.record() as log:
        fs.write_with(tmp_path / "a", lambda temporary: temporary.write_bytes(b"theirs") and None)
    assert [op.kind for op in log] == ["create", "write", "fsync", "rename", "fsync_dir"]
    assert log[1].data == b"theirs"
    assert (tmp_path / "a").read_bytes() == b"theirs"


@pytest.mark.parametrize(("error", "expected"), [(OSError(errno.EIO, "bad disk"), StorageError), (KeyError("x"), KeyError)])
def test_write_with_a_failing_writer(tmp_path: Path, error: Exception, expected: type[Exception]) -> None:
    def writer(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise error

    fs.write_bytes(tmp_path / "a", b"old")
    with pytest.raises(expected):
        fs.write_with(tmp_path / "a", writer)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/tmp-a.*create failed: No such file"):
        fs.write_bytes(tmp_path / "nowhere" / "a", b"x")


def test_truncate_cuts_and_never_grows(tmp_path: Path) -> None:
    file = tmp_path / "a"
    fs.write_bytes(file, b"12345")
    fs.truncate(file, 5)
    fs.truncate(file, 2)
    assert file.read_bytes() == b"12"
    with pytest.raises(ValueError, match="cannot cut to 3 bytes, it has 2"):
        fs.truncate(file, 3)
    assert fs.length(file) == 2
    assert fs.length(tmp_path / "absent") == 0


def test_mkdir_makes_each_level_durable(tmp_path: Path) -> None:
    with fs_ops.record() as log:
        fs.mkdir(tmp_path / "a" / "b")
        fs.mkdir(tmp_path / "a" / "b")
    assert [(op.kind, op.path) for op in log] == [
        ("mkdir", tmp_path / "a"),
        ("fsync_dir", tmp_path),
        ("mkdir", tmp_path / "a" / "b"),
        ("fsync_dir", tmp_path / "a"),
    ]


def test_remove_tree_does_not_follow_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    doomed = tmp_path / "doomed"
    (doomed / "deep").mkdir(parents=True)
    (doomed / "deep" / "f").write_text("x")
    (doomed / "link").symlink_to(kept)
    (doomed / "dangling").symlink_to(tmp_path / "nowhere")
    fs.remove_tree(doomed)
    fs.remove_tree(doomed)
    assert names(tmp_path) == ["kept"]
    assert names(kept) == ["file"]


def test_temporary_names_differ() -> None:
    assert len({fs.temporary_name("x") for _ in range(100)}) == 100


def test_temporary_names_are_known_and_no_others() -> None:
    for name in ("x", "run.json", "a b", "step-00000001", "line\nbreak"):
        assert fs.is_temporary(fs.temporary_name(name))
    for name in ("tmp-", "tmp-sft", "tmp-x-0123", "tmp-x-0123456789AB", "tmp--0123456789ab", "x-0123456789ab", "xtmp-x-0123456789ab"):
        assert not fs.is_temporary(name)


operations = st.lists(
    st.tuples(st.sampled_from(["append", "write", "truncate"]), st.binary(max_size=20), st.one_of(st.none(), st.integers(1, 4))),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(operations)
def test_any_sequence_with_faults_matches_a_model(
    tmp_path_factory: pytest.TempPathFactory, todo: list[tuple[str, bytes, int | None]]
) -> None:
    """Each operation either happens in full or not at all; faults 1..4 strike before the last sync of a folder."""
    folder = tmp_path_factory.mktemp("fs")
    file = folder / "f"
    fs.write_bytes(file, b"start")
    model = b"start"
    for kind, data, fault in todo:
        wanted = {"append": model + data, "write": data, "truncate": model[: len(data)]}[kind]
        act = {
            "append": lambda data=data: fs.append(file, data),
            "write": lambda data=data: fs.write_bytes(file, data),
            "truncate": lambda wanted=wanted: fs.truncate(file, len(wanted)),
        }[kind]
        with fs_ops.fail_at(fault or 1000) as injected:
            if kind == "truncate" or (kind == "append" and (fault or 1000) > 1) or fault is None:
                act()
                model = wanted
            else:
                with pytest.raises(StorageError):
                    act()
                assert injected.hits == 1
        assert file.read_bytes() == model
        assert names(folder) == ["f"]
