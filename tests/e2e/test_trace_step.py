"""One plain step, traced: the documented reading order holds its algorithm, and a reader has few files to open."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "trace_step.py"


def test_a_plain_step(tmp_path: Path) -> None:
    """In a process of its own: the tracer slows down whatever runs beside it."""
    out = tmp_path / "lines.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--files", "--write", str(out)], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    spec = importlib.util.spec_from_file_location("trace_step_of_test", SCRIPT)
    trace_step = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = trace_step
    spec.loader.exec_module(trace_step)
    counted = trace_step.Counted()
    for name, entry in json.loads(out.read_text()).items():
        counted.lines[name] = set(entry["lines"])

    assert {"rollout/engine_hf.py", "train/step.py", "policy/forward.py", "rewards/format.py"} <= set(counted.lines)
    assert "vlmrl" not in {name.split("/")[0] for name in counted.lines}
    assert counted.share(trace_step.reading_order(ROOT / "docs" / "architecture.md")) >= 0.9, done.stdout
    rest = counted.of("the rest")
    assert f"files outside media decoding and durable files: {len(rest)};" in done.stdout
    assert len(rest) <= trace_step.BOUND, "\n".join(rest)
