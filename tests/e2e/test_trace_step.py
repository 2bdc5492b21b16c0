"""One plain step, traced: the documented reading order holds its algorithm, and a reader has few files to open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.step import trace_step

ROOT = Path(__file__).parents[2]


def test_a_plain_step(tmp_path: Path) -> None:
    """In a process of its own: the tracer slows down whatever runs beside it."""
    out = tmp_path / "lines.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.step.trace_step", "--files", "--write", str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counted = trace_step.Counted()
    for name, entry in json.loads(out.read_text()).items():
        counted.lines[name] = set(entry["lines"])

    assert {"rollout/engine_hf.py", "train/step.py", "policy/forward.py", "rewards/format.py"} <= set(counted.lines)
    assert "vlmrl" not in {name.split("/")[0] for name in counted.lines}
    assert counted.share(trace_step.reading_order(ROOT / "docs" / "architecture.md")) >= 0.9, done.stdout
    rest = counted.of("the rest")
    assert f"files outside media decoding and durable files: {len(rest)};" in done.stdout
    assert len(rest) <= trace_step.BOUND, "\n".join(rest)
