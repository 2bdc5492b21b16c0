"""run.rundir: one process per run, the same command resumes, fixed options stay, signals ask before they kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import fs_ops
from vlmrl import fs
from vlmrl.errors import CheckpointError, ConfigError, RunBusyError, StorageError
from vlmrl.run import rundir
from vlmrl.run.rundir import Options, differences, open_run

CONFIG = {"model": {"path": "m"}, "optim": {"lr": 1e-6}, "run": {"trackers": ["tensorboard"]}}


def opened(root: Path, config: dict[str, Any] | None = None, fixed: dict[str, Any] | None = None, name: str = "one", **kw: Any) -> Any:
    config = CONFIG if config is None else config
    fixed = {"model": config["model"], "optim": config["optim"]} if fixed is None else fixed
    return open_run(root, name, Options(yaml.safe_dump(config), "h1", fixed), **kw)


def test_a_new_run_has_its_layout(tmp_path: Path) -> None:
    with opened(tmp_path / "runs") as run:
        assert run.path == tmp_path / "runs" / "one"
        assert (run.resumed, run.finished, run.stop_requested, run.notes) == (False, False, False, [])
        assert sorted(p.name for p in run.path.iterdir()) == [
            "LOCK", "checkpoints", "config.yaml", "environment.json", "eval", "journal", "run.json",
        ]  # fmt: skip
        assert yaml.safe_load(run.config.read_text()) == CONFIG
        environment = json.loads((run.path / "environment.json").read_text())
        assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
        assert environment["packages"]["torch"] == __import__("torch").__version__
        assert f"pid {os.getpid()}, since 2" in (run.path / "LOCK").read_text()
        assert (run.metrics.name, run.report.name, run.eval.name) == ("metrics.jsonl", "report.html", "eval")
    record = json.loads((run.path / "run.json").read_text())
    assert [entry["config_hash"] for entry in record["history"]] == ["h1"]


def test_the_same_command_resumes_until_it_is_finished(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        pass
    with opened(tmp_path) as run:
        assert (run.resumed, run.finished, run.notes) == (True, False, [])
        run.finish()
        assert run.finished
    with opened(tmp_path) as run:
        assert (run.resumed, run.finished) == (True, True)
    assert len(json.loads((run.path / "run.json").read_text())["history"]) == 3


def test_resume_policies(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to resume"), opened(tmp_path, resume="must"):
        pass
    assert list(tmp_path.iterdir()) == []
    with opened(tmp_path, resume="never"):
        pass
    with opened(tmp_path, resume="must") as run:
        assert run.resumed
    with pytest.raises(RunBusyError, match="already holds a run") as caught, opened(tmp_path, resume="never"):
        pass
    assert caught.value.exit_code == 73


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "tmp-x", "a\x00b"])
def test_names_cannot_leave_the_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.name"), opened(tmp_path / "r", name=name):
        pass
    assert not (tmp_path / "r").exists()


def test_a_changed_fixed_option_lists_every_difference(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        before = {p.name: p.read_bytes() for p in run.path.iterdir() if p.suffix in (".json", ".yaml")}
    changed = {"model": {"path": "n", "dtype": "bfloat16"}, "optim": {"lr": 2e-6}, "run": {"trackers": ["tensorboard"]}}
    with pytest.raises(ConfigError) as caught, opened(tmp_path, changed):
        pass
    assert [line.strip() for line in caught.value.problems[1:]] == [
        'model.dtype: absent in the run, "bfloat16" now',
        'model.path: "m" in the run, "n" now',
        "optim.lr: 1e-06 in the run, 2e-06 now",
    ]
    assert {p.name: p.read_bytes() for p in run.path.iterdir() if p.suffix in (".json", ".yaml")} == before


def test_a_changed_free_option_is_applied_and_noted(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    changed = {**CONFIG, "run": {"trackers": []}}
    with opened(tmp_path, changed) as run:
        assert run.notes == [
            'changed at resume: run.trackers: absent in the run, [] now',
            'changed at resume: run.trackers.0: "tensorboard" in the run, absent now',
        ]  # fmt: skip
        assert yaml.safe_load(run.config.read_text()) == changed
    assert json.loads((run.path / "run.json").read_text())["history"][1]["notes"] == run.notes
    with opened(tmp_path, changed) as run:
        assert run.notes == []


def test_other_versions_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path):
        pass
    now = {**rundir.environment(), "python": "3.99.0"}
    monkeypatch.setattr(rundir, "environment", lambda: now)
    with opened(tmp_path) as run:
        (note,) = run.notes
        assert note.startswith("not bit-exact: environment python: ")
        assert note.endswith('in the run, "3.99.0" now')


def test_fixed_values_may_hold_tuples(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path, fixed={"betas": (0.9, 0.99), "stages": [{"name": "a", "freeze": ()}]}) as run:
            pass
    assert run.resumed
    with pytest.raises(ConfigError, match=r"betas\.1: 0\.99 in the run, 0\.5 now"), opened(tmp_path, fixed={"betas": (0.9, 0.5)}):
        pass


def test_differences() -> None:
    assert differences({"a": 1, "b": {"c": [1, 2]}}, {"a": 1, "b": {"c": (1, 2)}}) == []
    assert differences({"a": None}, {}) == ["a: null in the run, absent now"]
    assert differences({"a": {}}, {"a": {"b": 1}}) == ["a: {} in the run, absent now", "a.b: absent in the run, 1 now"]


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        pass
    names = [fs.temporary_name(name) for name in ("step-00000002", "run.json", "sft", "toy.jsonl", "frame.png")]
    step, record, export, answers, frame = names
    (run.checkpoints / step).mkdir()
    (run.checkpoints / step / fs.temporary_name("model")).write_text("x")
    (run.path / record).write_text("x")
    (run.path / "stages" / export).mkdir(parents=True)
    for folder, name in (("suite/sft", answers), ("frames", frame)):
        (run.eval / folder).mkdir(parents=True)
        (run.eval / folder / name).write_text("x")
    (run.checkpoints / "step-00000001").mkdir()
    with opened(tmp_path) as run:
        removed = [f"checkpoints/{step}", f"eval/frames/{frame}", f"eval/suite/sft/{answers}", f"stages/{export}", record]
        assert [note.split(",")[0] for note in run.notes] == [f"removed {name}" for name in removed]
        assert [p.name for p in run.path.rglob("*") if fs.is_temporary(p.name)] == []
        assert [p.name for p in run.checkpoints.iterdir()] == ["step-00000001"]


def test_what_only_looks_like_a_leftover_stays(tmp_path: Path) -> None:
    """A finished stage, a user's folders and the files of a model may begin with the same letters."""
    with opened(tmp_path) as run:
        pass
    mine = ["stages/tmp-sft/model.safetensors", "tmp-notes/plan.txt", "stages/rl/tmp-scale.json", f"notes/{fs.temporary_name('draft')}"]
    for name in mine:
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text("mine")
    with opened(tmp_path) as run:
        assert run.notes == []
    assert [(run.path / name).read_text() for name in mine] == ["mine"] * len(mine)


@pytest.mark.parametrize("content", ["thesis.tex", "checkpoints/step-00000001"])
def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "one" / content).mkdir(parents=True)
    (tmp_path / "one" / "tmp-mine").mkdir()
    with pytest.raises(RunBusyError, match="not a run of ours"), opened(tmp_path):
        pass
    assert (tmp_path / "one" / content).exists()
    assert (tmp_path / "one" / "tmp-mine").exists()


def test_a_start_that_died_half_way_starts_again(tmp_path: Path) -> None:
    """Fails at every operation of the first start; the second start then works."""
    with fs_ops.record() as log, opened(tmp_path / "probe"):
        pass
    for n in range(1, len(log) + 1):
        with fs_ops.fail_at(n, sticky=True), pytest.raises(StorageError), opened(tmp_path / str(n)):
            pass
        with opened(tmp_path / str(n)) as run:
            assert yaml.safe_load(run.config.read_text()) == CONFIG
    assert len(log) > 15


@pytest.mark.parametrize("name", ["environment.json", "config.yaml"])
@pytest.mark.parametrize("content", [b"", b'{"py', b"a: [", b"\xff\xfe", b"null"])
def test_files_that_nothing_is_computed_from_are_written_again(name: str, content: bytes, tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        before = (run.path / name).read_bytes()
    (run.path / name).write_bytes(content)
    with opened(tmp_path) as run:
        assert (run.path / name).read_bytes() == before
        assert run.notes


ELSEWHERE = """
import sys
from tests.unit.run.test_rundir import opened
from vlmrl.errors import RunBusyError
try:
    with opened(sys.argv[1]):
        print("in")
except RunBusyError as error:
    print("busy:", error)
"""


def in_another_process(root: Path) -> str:
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, str(root)], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


@pytest.mark.not_fast
def test_deleting_the_lock_lets_nobody_in(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        (run.path / "LOCK").unlink()
        assert in_another_process(tmp_path).startswith(f"busy: {run.path} is in use by a process that is just starting, or whose LOCK was")
        run.still_ours()
    assert in_another_process(tmp_path) == "in"


def test_without_locks_of_folders_the_holder_sees_that_its_lock_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems such as NFS lock files only: a second process gets in, and the first must write nothing more."""
    real = rundir.fcntl.flock

    def files_only(descriptor: int, flags: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(9, "Bad file descriptor")
        real(descriptor, flags)

    monkeypatch.setattr(rundir.fcntl, "flock", files_only)
    with opened(tmp_path) as run:
        run.still_ours()
        (run.path / "LOCK").unlink()
        with pytest.raises(RunBusyError, match="LOCK was deleted or replaced while this process was using it"):
            run.still_ours()
        with opened(tmp_path) as second:
            second.still_ours()
            with pytest.raises(RunBusyError, match="nothing more is written"):
                run.still_ours()


def test_a_folder_that_was_moved_away_is_not_written_to(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        run.path.rename(tmp_path / "moved")
        with pytest.raises(RunBusyError, match="was moved, deleted or replaced"):
            run.still_ours()
        with opened(tmp_path) as second:
            assert second.path == run.path
            with pytest.raises(RunBusyError):
                run.still_ours()


def test_records_that_are_newer_or_damaged_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        pass
    record = run.path / "run.json"
    record.write_text(record.read_text().replace('"schema": 1', '"schema": 3'))
    with pytest.raises(CheckpointError, match="schema 3, this version reads up to 1"), opened(tmp_path):
        pass
    record.write_text("[]")
    with pytest.raises(CheckpointError, match=r"run\.json: not the record of a run"), opened(tmp_path):
        pass
    record.write_text("{")
    with pytest.raises(CheckpointError, match=r"run\.json: not JSON"), opened(tmp_path):
        pass


def test_other_ranks_neither_lock_nor_write(tmp_path: Path) -> None:
    with opened(tmp_path) as main, opened(tmp_path, is_main=False) as other:
        assert other.path == main.path
    with opened(tmp_path / "new", is_main=False):
        pass
    assert not (tmp_path / "new").exists()

    def failed_elsewhere(fn: Callable[[], None]) -> None:
        fn()
        raise RunBusyError("rank 0 found it busy")

    with pytest.raises(RunBusyError, match="rank 0"), opened(tmp_path, is_main=False, run_synchronized=failed_elsewhere):
        pass
    with pytest.raises(RunBusyError, match="rank 0"), opened(tmp_path, run_synchronized=failed_elsewhere):
        pass
    with opened(tmp_path):
        pass  # the lock was given back when another rank failed


def test_a_second_opening_says_who_has_it(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(RunBusyError, match=rf"in use by host .*, pid {os.getpid()}, since \d{{4}}-.* UTC"),
        opened(tmp_path),
    ):
        pass
    with opened(tmp_path, name="two"), opened(tmp_path):
        pass


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    """A loader worker that outlives the trainer must not leave the run locked."""
    hold, release = os.pipe()
    ready, told = os.pipe()
    with opened(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(release)
            os.write(told, b"1")
            os.read(hold, 1)
            os._exit(0)
        os.read(ready, 1)  # the child lets go as soon as it runs, which may be a while after the fork
        with pytest.raises(RunBusyError), opened(tmp_path):
            pass
    try:
        with opened(tmp_path) as run:
            assert run.resumed
    finally:
        for end in (release, hold, ready, told):
            os.close(end)
        os.waitpid(child, 0)


RACER = """
import sys
from pathlib import Path
from vlmrl.errors import RunBusyError
from vlmrl.run import rundir
print("ready", flush=True)
for line in sys.stdin:
    try:
        with rundir.locked(Path(sys.argv[1])):
            print("won", flush=True)
            sys.stdin.readline()
    except RunBusyError:
        print("lost", flush=True)
        sys.stdin.readline()
    print("out", flush=True)
"""


def test_two_processes_race_and_exactly_one_wins(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "LOCK")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(2)
    ]

    def tell() -> list[str]:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
        return hear()

    def hear() -> list[str]:
        return [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]

    try:
        assert hear() == ["ready", "ready"]
        for _ in range(100):
            assert sorted(tell()) == ["lost", "won"]
            assert tell() == ["out", "out"]
        # The lock of a process that is killed is free at once.
        results = tell()
        winner = results.index("won")
        racers[winner].kill()
        racers[winner].wait()
        with rundir.locked(tmp_path / "LOCK"):
            pass
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_the_first_signal_asks_and_handlers_are_put_back(tmp_path: Path) -> None:
    before = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    for number in (signal.SIGTERM, signal.SIGINT):
        with opened(tmp_path) as run:
            assert not run.stop_requested
            os.kill(os.getpid(), number)
            assert run.stop_requested
            assert run.stop_signal == number.name
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


SIGNALLED = """
import os, sys, signal
from vlmrl.run.rundir import Options, open_run
with open_run(sys.argv[1], "r", Options("{}", "", {})) as run:
    try:
        for name in sys.argv[2:]:
            os.kill(os.getpid(), getattr(signal, name))
            print(run.stop_signal, flush=True)
    finally:
        print("cleaned up", flush=True)
"""


@pytest.mark.not_fast
@pytest.mark.parametrize(("second", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_the_second_signal_exits_at_once(tmp_path: Path, second: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED, str(tmp_path), "SIGTERM", second], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split("\n")) == (code, ["SIGTERM", ""]), done.stderr


def test_in_a_thread_the_handlers_stay(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    def body() -> None:
        with opened(tmp_path):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [before]
