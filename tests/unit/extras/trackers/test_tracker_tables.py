"""Tables for trackers, each written offline by the tracker itself and read back where its files can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from accelerate import PartialState
from accelerate import tracking as accelerate_tracking

from vlmrl.extras.trackers.tables import WAYS, markdown

TABLE = (("step", "completion", "reward"), [(3, "<b>|*x*|</b>\nend", 0.5), (3, "none", None)])


def started(kind: str, *arguments: Any, **options: Any) -> Any:
    PartialState()
    tracker = getattr(accelerate_tracking, kind)("vlmrl-tables", *arguments, **options)
    tracker.start()
    return tracker


def test_markdown_by_hand() -> None:
    assert markdown(TABLE).splitlines() == [
        "| step | completion | reward |",
        "| --- | --- | --- |",
        "| 3 | &lt;b&gt;&#124;&#42;x&#42;&#124;&lt;/b&gt;<br>end | 0.5 |",
        "| 3 | none |  |",
    ]


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = started("TensorBoardTracker", str(tmp_path))
    WAYS["tensorboard"](tracker, "completions", TABLE, 3)
    tracker.finish()
    events = EventAccumulator(str(tmp_path / "vlmrl-tables"))
    events.Reload()
    (found,) = events.Tensors("completions/text_summary")
    assert (found.step, found.tensor_proto.string_val[0].decode()) == (3, markdown(TABLE))


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tracker = started("WandBTracker")
    WAYS["wandb"](tracker, "completions", TABLE, 3)
    tracker.finish()
    (file,) = tmp_path.rglob("*.table.json")
    found = json.loads(file.read_text())
    assert found["columns"] == list(TABLE[0])
    assert found["data"] == [list(row) for row in TABLE[1]]


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trackio", reason="pip install trackio")
    tracker = started("TrackioTracker")
    WAYS["trackio"](tracker, "completions", TABLE, 3)
    tracker.finish()
    held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"completions" in held


def test_swanlab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("swanlab", reason="pip install swanlab")
    tracker = started("SwanLabTracker", mode="offline", logdir=str(tmp_path))
    WAYS["swanlab"](tracker, "completions", TABLE, 3)
    tracker.finish()
    held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"completions" in held


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="pip install mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = started("MLflowTracker")
    WAYS["mlflow"](tracker, "completions", TABLE, 3)
    tracker.finish()
    (file,) = tmp_path.rglob("step-00000003.json")
    assert json.loads(file.read_text())["columns"] == list(TABLE[0])
