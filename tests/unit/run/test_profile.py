"""The profiler around the steps of a stage: which steps it sees, what it writes, and when it writes nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vlmrl.run.profile import ROWS, StageProfiler
from vlmrl.train.meter import Clock

CPU = torch.device("cpu")
NAMES = """sin cos tan exp log sqrt abs neg floor ceil round sigmoid tanh erf sinh cosh asin acos atan log2 log10 log1p expm1 rsqrt
square sign trunc frac reciprocal asinh atanh digamma lgamma erfc exp2 relu"""


def run(profiler: StageProfiler, steps: int, act: Callable[[int], object] = lambda n: None) -> None:
    """A stage of which step n multiplies matrices n times."""
    with profiler:
        for n in range(1, steps + 1):
            clock = Clock()
            with clock.phase(f"step {n}"):
                for _ in range(n):
                    torch.ones(4, 4) @ torch.ones(4, 4)
                act(n)
            profiler.after_step()


def events(profiler: StageProfiler, name: str) -> int:
    trace = json.loads(gzip.decompress(profiler.trace.read_bytes()))
    return sum(event.get("name") == name for event in trace["traceEvents"])


def test_the_steps_after_the_first_and_no_others(tmp_path: Path) -> None:
    said: list[str] = []
    profiler = StageProfiler(tmp_path / "profile", "rl", steps=2, device=CPU, say=said.append)
    run(profiler, 5)
    assert events(profiler, "aten::mm") == 2 + 3
    assert [events(profiler, f"phase: step {n}") for n in range(1, 6)] == [0, 1, 1, 0, 0]
    table = (tmp_path / "profile" / "rl.txt").read_text().splitlines()
    assert table[0] == "2 steps; the trace is in rl.json.gz"
    (row,) = (line.split() for line in table if line.split()[:1] == ["aten::mm"])
    assert row[-1] == "5", "number of calls"
    assert said == [f"profile of 2 steps of stage 'rl': {tmp_path / 'profile' / 'rl.json.gz'}"]
    assert sorted(p.name for p in (tmp_path / "profile").iterdir()) == ["rl.json.gz", "rl.txt"]


def test_it_is_written_as_soon_as_the_steps_are_done(tmp_path: Path) -> None:
    profiler = StageProfiler(tmp_path, "rl", steps=1, device=CPU, say=lambda text: None)
    there: list[bool] = []
    run(profiler, 3, lambda n: there.append(profiler.trace.exists()))
    assert there == [False, False, True]


def test_a_stage_that_ends_early_keeps_what_there_was(tmp_path: Path) -> None:
    profiler = StageProfiler(tmp_path, "rl", steps=10, device=CPU, say=lambda text: None)
    run(profiler, 3)
    assert events(profiler, "aten::mm") == 2 + 3
    assert profiler.table.read_text().startswith("2 steps;")


@pytest.mark.parametrize("steps", [0, 1])
def test_too_short_a_stage_is_said(tmp_path: Path, steps: int) -> None:
    said: list[str] = []
    run(StageProfiler(tmp_path / "profile", "rl", steps=2, device=CPU, say=said.append), steps)
    assert said == ["stage 'rl': no step was left to profile after the first, which is a warm-up"]
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_stage_that_fails_leaves_nothing_and_the_profiler_stops(tmp_path: Path, at: int) -> None:
    def fail(n: int) -> None:
        if n == at:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(StageProfiler(tmp_path / "profile", "rl", steps=5, device=CPU, say=lambda text: None), 5, fail)
    assert not (tmp_path / "profile").exists()
    again = StageProfiler(tmp_path / "profile", "rl", steps=1, device=CPU, say=lambda text: None)
    run(again, 2)  # a second profiler may only start when the first has stopped
    assert events(again, "aten::mm") == 2


def test_the_table_is_short(tmp_path: Path) -> None:
    x = torch.ones(3) / 2
    functions = [getattr(torch, name) for name in NAMES.split()]
    profiler = StageProfiler(tmp_path, "rl", steps=1, device=CPU, say=lambda text: None)
    run(profiler, 2, lambda n: [f(x) for f in functions])
    rows = [line for line in profiler.table.read_text().splitlines() if "%" in line and "Name" not in line]
    assert len(functions) > ROWS == len(rows)
