"""run.tracking: metrics.jsonl is exact, cut at resume, and trackers are checked before the run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate import PartialState
from accelerate.tracking import GeneralTracker

from tests.support import fs_ops
from vlmrl import fs
from vlmrl.errors import CheckpointError, ConfigError, StorageError
from vlmrl.run.tracking import Tracker, read_metrics, without_clock


def log(tracker: Tracker, step: int, **values: Any) -> None:
    tracker.log({"loss/policy": step / 3, **values}, stage="grpo", step=step, global_step=100 + step)


def test_a_line_is_sorted_and_comes_back(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    log(tracker, 1, zeta=True, alpha="text", count=2**60, **{"time/rollout": 0.25})
    line = tracker.path.read_text()
    assert line.endswith("}\n")
    assert list(json.loads(line)) == sorted(
        ["loss/policy", "zeta", "alpha", "count", "time/rollout", "stage", "step", "global_step", "wall"]
    )
    (row,) = read_metrics(tracker.path)
    assert row.pop("wall") > 1.7e9
    expected = {"alpha": "text", "count": 2**60, "global_step": 101, "loss/policy": 1 / 3, "stage": "grpo", "step": 1, "zeta": True}
    assert row == {**expected, "time/rollout": 0.25}
    assert without_clock([{**row, "wall": 1}]) == [expected]


def test_non_finite_numbers_survive_as_standard_json(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    log(tracker, 1, a=math.nan, b=math.inf, c=-math.inf, d=float(np.float64(0.1)))
    assert '"a": "NaN", "b": "Infinity", "c": "-Infinity"' in tracker.path.read_text()
    (row,) = read_metrics(tracker.path)
    assert math.isnan(row["a"])
    assert (row["b"], row["c"], row["d"]) == (math.inf, -math.inf, 0.1)


@pytest.mark.parametrize("bad", [np.float32(1), np.int64(1), None, [1.0], {"a": 1}])
def test_other_types_are_named(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(TypeError, match="metric 'x' is"):
        log(Tracker(tmp_path), 1, x=bad)
    assert fs.length(tmp_path / "metrics.jsonl") == 0


@pytest.mark.parametrize("name", ["stage", "step", "global_step", "wall"])
def test_our_own_names_are_reserved(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        Tracker(tmp_path).log({name: 1}, stage="s", step=0, global_step=0)


def test_truncate_to_the_offset_of_a_checkpoint(tmp_path: Path) -> None:
    """Killed after step 4 with a checkpoint after step 2: the resumed file equals the uninterrupted one without the clock."""
    whole = Tracker(tmp_path / "whole")
    broken = Tracker(tmp_path / "broken")
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    assert broken.mark()[0] == 0
    for step in range(1, 7):
        log(whole, step)
    log(broken, 1)
    log(broken, 2)
    offset = broken.mark()[0]
    log(broken, 3)
    log(broken, 4)
    fs.append(broken.path, b'{"torn')
    assert len(read_metrics(broken.path)) == 4
    resumed = Tracker(tmp_path / "broken")
    resumed.truncate(offset)
    for step in range(3, 7):
        log(resumed, step)
    assert without_clock(read_metrics(resumed.path)) == without_clock(read_metrics(whole.path))
    resumed.truncate(0)
    assert read_metrics(resumed.path) == []


def test_offset_is_durable_before_it_is_told(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    log(tracker, 1)
    with fs_ops.record() as operations:
        assert tracker.mark()[0] == tracker.path.stat().st_size
    assert [op.kind for op in operations] == ["fsync", "fsync_dir"]


def test_a_file_that_lost_lines_is_refused(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    log(tracker, 1)
    with pytest.raises(CheckpointError, match="lines were removed"):
        tracker.truncate(tracker.mark()[0] + 1)


def test_a_full_disk_keeps_the_line_before(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path)
    log(tracker, 1)
    with fs_ops.fail_at(1), pytest.raises(StorageError):
        log(tracker, 2)
    log(tracker, 3)
    assert [row["step"] for row in read_metrics(tracker.path)] == [1, 3]


def test_other_ranks_do_nothing(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, ["no such tracker"], is_main=False)
    log(tracker, 1)
    tracker.truncate(0)
    tracker.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"), [(b'{"a": 1}\nnot json\n{"a": 2}\n', "metrics.jsonl:2: not JSON"), (b"[1]\n", ":1: not a JSON obj")]
)
def test_damaged_lines_are_errors(tmp_path: Path, content: bytes, message: str) -> None:
    fs.write_bytes(tmp_path / "metrics.jsonl", content)
    with pytest.raises(StorageError, match=message):
        read_metrics(tmp_path / "metrics.jsonl")
    with pytest.raises(StorageError, match="no metrics file"):
        read_metrics(tmp_path / "absent.jsonl")


def test_unknown_and_missing_trackers_are_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: ["tensorboard"])
    with pytest.raises(ConfigError) as caught:
        Tracker(tmp_path, ["tensorbord", "wandb", "comet_ml", "tensorboard"])
    first, second, third = caught.value.problems
    assert first.startswith("run.trackers: unknown tracker 'tensorbord'; did you mean 'tensorboard'? (known: ")
    assert second == "run.trackers: 'wandb' is not installed: pip install wandb"
    assert third == "run.trackers: 'comet_ml' is not installed: pip install comet-ml"


class Recorder(GeneralTracker):
    """A tracker of the user's own, registered with accelerate."""

    name = "recorder"
    requires_logging_directory = False
    calls: list[Any] = []  # noqa: RUF012 (shared on purpose: the tracker is made by name)

    def __init__(self, run_name: str):
        super().__init__()
        self.calls.append(("init", run_name))

    @property
    def tracker(self) -> None:
        return None

    def start(self) -> None:
        self.calls.append("start")

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        if "fail" in values:
            raise ConnectionError("server gone")
        self.calls.append((values, step))

    def finish(self) -> None:
        self.calls.append("finish")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setitem(__import__("accelerate").tracking.LOGGER_TYPE_TO_CLASS, "recorder", Recorder)
    Recorder.calls = []
    return Recorder.calls


def test_trackers_get_a_copy_and_their_failure_is_not_hidden(tmp_path: Path, recorder: list[Any]) -> None:
    tracker = Tracker(tmp_path, ["recorder", "recorder"])
    assert recorder == []
    tracker.start(101)
    assert recorder == [("init", tmp_path.name), "start"]
    log(tracker, 1)
    assert recorder[2:] == [({"loss/policy": 1 / 3}, 101)]
    with pytest.raises(ConnectionError, match="server gone"):
        log(tracker, 2, fail=True)
    tracker.close()
    assert recorder[-1] == "finish"


def test_tensorboard_hides_what_an_interrupted_run_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    PartialState()
    for first, last, value in ((1, 4, 1.0), (3, 5, 2.0)):
        tracker = Tracker(tmp_path / "run", ["tensorboard"])
        (tmp_path / "run").mkdir(exist_ok=True)
        for step in range(first, last + 1):
            tracker.log({"loss": value}, stage="s", step=step, global_step=step)
        tracker.close()
    events = EventAccumulator(str(tmp_path / "run" / "trackers" / "run"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]


def test_damage_before_the_offset_is_told_with_its_lines(tmp_path: Path) -> None:
    """Nothing is computed from metrics, so the run goes on; but nobody reads a changed number as what was measured."""
    tracker = Tracker(tmp_path)
    marks: list[tuple[int, list[Any]]] = []
    for step in range(6):
        tracker.log({"loss": 1.0 + step}, stage="rl", step=step, global_step=step)
        if step % 2:
            marks.append(tracker.mark())
    whole = tracker.path.read_bytes()
    offset, saved = marks[-1]
    assert (offset, [end for end, _ in saved]) == (len(whole), [m[0] for m in marks])

    def said(raw: bytes, at: tuple[int, list[Any]] | None = None) -> list[str]:
        tracker.path.write_bytes(raw)
        notes: list[str] = []
        again = Tracker(tmp_path)
        again.restore(*(at or marks[-1]), note=notes.append)
        assert again.mark()[0] == (at or marks[-1])[0]
        return notes

    assert said(whole) == []
    assert said(whole, marks[0]) == []
    for line in range(6):
        place = [0, *(i + 1 for i, byte in enumerate(whole) if byte == 10)][line] + 3
        (note,) = said(whole[:place] + b"X" + whole[place + 1 :])
        assert f"lines {line // 2 * 2 + 1} to {line // 2 * 2 + 2} are not as they were written" in note


def test_long_runs_keep_a_bounded_number_of_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmrl.run.tracking.MOST_MARKS", 8)
    tracker = Tracker(tmp_path)
    for step in range(40):
        tracker.log({"loss": 1.0}, stage="rl", step=step, global_step=step)
        offset, marks = tracker.mark()
        assert len(marks) <= 8
        assert marks[-1][0] == offset
    notes: list[str] = []
    Tracker(tmp_path).restore(offset, marks, note=notes.append)
    assert notes == []
