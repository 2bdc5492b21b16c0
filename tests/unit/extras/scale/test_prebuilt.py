"""Operations that are compiled at first use: one process at a time, and no waiting for a process that is gone."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from vlmrl.extras.scale.prebuilt import MARK, load_alone


class Build:
    """Notes whether the mark was there when it began."""

    name = "an operation"

    def __init__(self, folder: Path):
        self.folder = folder
        self.marked: list[bool] = []

    def load(self, verbose: bool = True) -> None:
        del verbose
        self.marked.append((self.folder / MARK).exists())


def test_a_mark_that_was_left_behind_is_removed_and_said(tmp_path: Path) -> None:
    (tmp_path / MARK).touch()
    os.utime(tmp_path / MARK, (time.time() - 1000,) * 2)
    build = Build(tmp_path)
    with pytest.warns(UserWarning, match="was left by a process that was killed while it compiled an operation"):
        load_alone(build, tmp_path)
    assert build.marked == [False]


def test_a_young_mark_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / MARK).touch()
    build = Build(tmp_path)
    waiting = threading.Thread(target=load_alone, args=(build, tmp_path))
    waiting.start()
    time.sleep(0.3)
    assert build.marked == []
    (tmp_path / MARK).unlink()
    waiting.join(10)
    assert build.marked == [False]


def test_nobody_builds_beside_another(tmp_path: Path) -> None:
    build = Build(tmp_path)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=load_alone, args=(build, tmp_path))
        waiting.start()
        time.sleep(0.3)
        assert build.marked == []
    finally:
        os.close(held)
    waiting.join(10)
    assert build.marked == [False]


@pytest.mark.slow
def test_deepspeeds_own_is_found() -> None:
    """What it asks of DeepSpeed and torch is there in the installed versions, and what was built is what DeepSpeed loads."""
    pytest.importorskip("deepspeed")
    from deepspeed.ops.op_builder.builder import OpBuilder

    from vlmrl.extras.scale.prebuilt import prebuild

    prebuild()
    assert any("shm" in name for name in OpBuilder._loaded_ops)
