"""The comparison of rollout engines: its table by hand, and a very small setting of it from the command to the page."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
CELL = {"kind": "image", "prompt": 64, "group": 2, "completion": 3, "batch": 1, "vocabulary": 0, "sides": "hf vllm"}


def test_the_table_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    loaded = set(sys.modules)
    spec = importlib.util.spec_from_file_location("benchmark_rollout_engines", ROOT / "benchmarks" / "rollout_engines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    for name in ("common", "meter"):  # their short names are the script's alone
        if name not in loaded:
            sys.modules.pop(name, None)
    results: list[dict[str, Any]] = [
        {"cell": CELL, "hf": [2.0, 4.0], "vllm": [1.0, 1.0], "sent": [0.5, 0.25], "tokens": 6},
        {"cell": CELL, "hf": [3.0], "vllm": [6.0], "sent": [0.5], "tokens": 6},
        {"cell": CELL | {"group": 4}, "failed": "over 1 s"},
    ]
    _, ours, theirs = module.table_of(results)
    name = "image, 64 x 2 x 3, 1"
    assert ours == [name, "hf", "3.00 (2.00..4.00)", "-", "2", "1.00 (1.00..1.00)"]
    assert theirs == [name, "vllm", "1.00 (1.00..6.00)", "0.500 (0.250..0.500)", "6", "0.50 (0.25..2.00)"]


@pytest.mark.slow
@pytest.mark.parametrize("sides", [("hf", "generate"), ("hf", "generate", "vllm")])
@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_very_small_setting_runs(tmp_path: Path, kind: str, sides: tuple[str, ...]) -> None:
    if "vllm" in sides:
        pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")
    small = ["--prompts", "64", "--groups", "2", "--completions", "4", "--repeats", "1", "--steps", "2", "--kinds", kind]
    where = ["--work", str(tmp_path / "work"), "--write", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "rollout_engines.py"), *small, *where, "--sides", *sides],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"].values()
    assert result["tokens"] == 2 * 2 * 4
    assert all(len(result[side]) == 2 for side in sides)
    assert len(result["sent"]) == (2 if "vllm" in sides else 0)
    page = (tmp_path / "out.md").read_text()
    assert all(f"| {kind}, 64 x 2 x 4, 2 | {side} | " in page for side in sides)
