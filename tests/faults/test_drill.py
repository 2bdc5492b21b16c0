"""The fault drill judges rightly, and its cheap areas hold. (`python -m tests.faults.drill` runs all of them.)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.drill import inputs, storage
from tests.faults.drill.__main__ import AREAS
from tests.faults.drill.result import Drill, Ended, Result, judge, table

CONFIG = {"run": {"name": "one"}, "stages": [{"name": "rl"}]}


@pytest.fixture
def finished(tmp_path: Path) -> dict[str, Any]:
    """A folder that looks like a finished run."""
    run = tmp_path / "one"
    for name, text in {
        "stages/rl/model.safetensors": "weights",
        "final/model.safetensors": "weights",
        "eval/base.jsonl": "{}\n",
        "metrics.jsonl": '{"stage": "rl", "step": 1, "global_step": 1, "wall": 5.0, "loss": 0.5}\n',
        "checkpoints/step-00000001/state.json": json.dumps({"run": {"step": 1}}),
        "checkpoints/step-00000001/optimizer.safetensors": "moments",
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    return {**CONFIG, "run": {"name": "one", "root": str(tmp_path)}}


@pytest.mark.parametrize(
    ("ended", "more", "verdict"),
    [
        (Ended(0, ""), {}, "right"),
        (Ended(76, "checkpoint is damaged"), {}, "clear"),
        (Ended(76, "checkpoint is damaged"), {"must_end": True}, "crash"),
        (Ended(76, "state is not plain JSON"), {"codes": {65, 70}}, "crash"),
        (Ended(1, ""), {}, "crash"),
        (Ended(74, ""), {}, "crash"),
        (Ended(-11, ""), {}, "crash"),
        (Ended(124, "did not end"), {}, "crash"),
    ],
)
def test_verdicts(ended: Ended, more: dict[str, Any], verdict: str, finished: dict[str, Any]) -> None:
    assert judge("a", "c", ended, finished, storage.outcome(finished), **more).verdict == verdict


@pytest.mark.parametrize("name", ["stages/rl/model.safetensors", "final/model.safetensors", "eval/base.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize("gone", [True, False])
def test_another_end_without_a_word_is_silent(name: str, gone: bool, finished: dict[str, Any]) -> None:
    expected = storage.outcome(finished)
    path = Path(finished["run"]["root"], "one", name)
    path.write_text(path.read_text().replace("weights", "Weights").replace("0.5", "0.25").replace("{}", '{"a": 1}'))
    if gone:
        path.unlink()
    found = judge("a", "c", Ended(0, ""), finished, expected)
    assert found.verdict == "silent"
    assert found.note.startswith("exit 0 with")


def test_the_table_counts_and_lists_what_is_not_well() -> None:
    results = [Result(area="x", case=verdict, verdict=verdict, note="why") for verdict in ("right", "clear", "crash", "silent", "skipped")]
    lines = table([*results, Result(area="y", case="z", verdict="right")]).splitlines()
    assert lines[2:4] == ["| x | 4 | 1 | 1 | 1 | 1 | 1 |", "| y | 1 | 1 | 0 | 0 | 0 | 0 |"]
    assert lines[5:] == ["crash: x: crash: why", "silent: x: silent: why", "skipped: x: skipped: why"]


def test_names_and_rows_hold(tmp_path: Path) -> None:
    drill = Drill(folder=tmp_path, files=(tmp_path, tmp_path), seed=0, quick=True)
    results = [*inputs.names(drill), *inputs.rows(drill)]
    assert len(results) > 90
    assert [one for one in results if one.verdict not in ("right", "clear")] == []
    assert set(AREAS) == {"names", "rows", "media", "pages", "rewards", "numbers", "load", "storage", "resume"}
