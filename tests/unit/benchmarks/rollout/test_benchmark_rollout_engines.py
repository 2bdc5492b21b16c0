"""The comparison of engines: its tables by hand, and a very small setting of each part from the command to the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rollout import engines, evals, steps
from tests.support.command import module

CELL = {"part": "engines", "kind": "image", "prompt": 64, "group": 2, "completion": 3, "batch": 1, "vocabulary": 0, "sides": "hf vllm"}


def test_the_table_by_hand() -> None:
    results: list[dict[str, Any]] = [
        {"cell": CELL, "hf": [2.0, 4.0], "vllm": [1.0, 1.0], "sent": [0.5, 0.25], "tokens": 6},
        {"cell": CELL, "hf": [3.0], "vllm": [6.0], "sent": [0.5], "tokens": 6},
        {"cell": CELL | {"group": 4}, "failed": "over 1 s"},
    ]
    _, ours, theirs = engines.table_of(results)
    name = "image, 64 x 2 x 3, 1"
    assert ours == [name, "hf", "3.00 (2.00..4.00)", "-", "2", "1.00 (1.00..1.00)"]
    assert theirs == [name, "vllm", "1.00 (1.00..6.00)", "0.500 (0.250..0.500)", "6", "0.50 (0.25..2.00)"]


def test_the_table_of_steps_by_hand() -> None:
    cell = CELL | {"part": "steps"}
    results: list[dict[str, Any]] = [
        {"cell": cell, "side": "hf", "seconds": [4.0, 6.0], "rollout": [3.0, 3.0], "update": [1.0, 2.0]},
        {"cell": cell, "side": "vllm", "seconds": [2.0, 3.0], "rollout": [1.0, 1.0], "update": [1.0, 1.0]},
        {"cell": cell | {"group": 4}, "side": "hf", "failed": "over 1 s"},
    ]
    _, ours, theirs = steps.table_of(results)
    name = "image, 64 x 2 x 3, 1"
    assert ours == [name, "hf", "5.00 (4.00..6.00)", "3.00 (3.00..3.00)", "1.50 (1.00..2.00)", "1.00"]
    assert theirs == [name, "vllm", "2.50 (2.00..3.00)", "1.00 (1.00..1.00)", "1.00 (1.00..1.00)", "0.50"]


def test_the_table_of_evaluations_by_hand(tmp_path: Path) -> None:
    cell = {"part": "evals", "prompt": 64, "questions": 5, "completion": 3, "videos": 2}
    results: list[dict[str, Any]] = [
        {"cell": cell, "side": "hf", "seconds": [2.0], "answers": 10, "tokens": 30},
        {"cell": cell, "side": "lmms-eval", "seconds": [5.0], "answers": 10, "tokens": 30},
    ]
    assert evals.table_of(results)[1:] == [
        ["64 x 5 x 3, 2", "hf", "2.00 (2.00..2.00)", "5.00", "30", "1.00"],
        ["64 x 5 x 3, 2", "lmms-eval", "5.00 (5.00..5.00)", "2.00", "30", "2.50"],
    ]
    rows = [{"id": f"video-{n}", "video": f"{n}.mp4", "prompt": "?"} for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counted, first = evals.rows_of(tmp_path, cell)
    assert [row["video"] for row in counted] == ["1.mp4"] * 5 + ["2.mp4"] * 5
    assert len({(row["video"], row["prompt"]) for row in counted}) == len({row["id"] for row in counted}) == 10
    assert [row["video"] for row in first] == ["0.mp4"], "what warms up is not asked about again"


@pytest.mark.slow
@pytest.mark.parametrize("sides", [("hf", "generate"), ("hf", "generate", "vllm")])
@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_very_small_setting_runs(tmp_path: Path, kind: str, sides: tuple[str, ...]) -> None:
    if "vllm" in sides:
        pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")
    small = ["--prompts", "64", "--groups", "2", "--completions", "4", "--repeats", "1", "--steps", "2", "--kinds", kind]
    left_out = [side for side in ("generate", "vllm") if side not in sides]
    where = ["--work", str(tmp_path / "work"), "--write", str(tmp_path / "out")]
    done = module("benchmarks.rollout.rollout", "--parts", "engines", *small, *where, "--without", "lmms-eval", *left_out, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"].values()
    assert result["tokens"] == 2 * 2 * 4
    assert all(len(result[side]) == 2 for side in sides)
    assert len(result["sent"]) == (2 if "vllm" in sides else 0)
    page = (tmp_path / "out.md").read_text()
    assert all(f"| {kind}, 64 x 2 x 4, 2 | {side} | " in page for side in sides)


SIDES = {
    "programs": ["vlmrl", "generate", "vllm"],
    "steps": ["hf", "vllm"],
    "evals": ["hf", "vllm", "lmms-eval", "lmms-eval, batch of 5"],
}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("part", "engine"), [("steps", "hf"), *(pytest.param(part, "vllm", marks=SLOW, id=f"{part}-vllm") for part in SIDES)]
)
def test_every_part_writes_its_table(tmp_path: Path, part: str, engine: str) -> None:
    needed = ["vllm", *(["lmms_eval"] if part == "evals" else [])] if engine == "vllm" else []
    for package in needed:
        pytest.importorskip(package, reason=f"{package} is not installed here")
    left_out = [] if engine == "vllm" else ["--without", "vllm"]
    small = [
        "--prompts",
        "64",
        "--groups",
        "2",
        "--completions",
        "3",
        "--repeats",
        "1",
        "--steps",
        "1",
        "--kinds",
        "video",
        "--videos",
        "1",
    ]
    done = module(
        "benchmarks.rollout.rollout",
        *("--parts", part, *small),
        *("--work", str(tmp_path / "work"), "--write", str(tmp_path / "out")),
        *left_out,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    results = json.loads((tmp_path / "out.json").read_text())["results"].values()
    sides = [side for side in SIDES[part] if side not in left_out]
    assert [result["side"] for result in results] == sides
    assert all(len(result["seconds"]) == 1 for result in results)
    if part == "evals":
        assert {(result["answers"], result["tokens"]) for result in results} == {(5, 15)}
    page = (tmp_path / "out.md").read_text()
    assert all(f"| {side} | " in page for side in sides)
