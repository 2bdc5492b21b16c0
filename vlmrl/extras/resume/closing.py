"""Where the things of a finished run are, and the commands that go on from here: the last lines of `vlmrl train`."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from vlmrl.config.schema import Config

SUITES = {"shell": "toy_video", "grounding": "toy_grounding"}
"""Kind of generated world -> the suite that asks it."""


def closing_lines(path: Path, cfg: Config) -> list[str]:
    """Where the model and the report of a finished run are, and the commands that go on from here."""
    final, report, best = path / "final", path / "report.html", path / "best"
    out = [f"model:    {final}" + (f"   (the best evaluation: {best})" if best.exists() else "")]
    if report.exists():
        out.append(f"report:   {report}")
    toy = cfg.toy.world.kind if cfg.data.root == "toy" and cfg.toy is not None else None
    suite = cfg.eval.suite or SUITES.get(toy or "")
    evaluate = shlex.join([*_program(), "eval", str(final), "--suite"])
    out.append(
        f"evaluate: {evaluate} {shlex.quote(suite)}"
        if suite
        else f"evaluate: {evaluate} NAME   (names: {shlex.join([*_program(), 'list', 'suites'])})"
    )
    return [*out, f"look:     {shlex.join([*_program(), 'view', str(path)])}"]


def _program() -> list[str]:
    """How this machine calls the command line: by its name where that is on the path."""
    return ["vlmrl"] if shutil.which("vlmrl") else [sys.executable, "-m", "vlmrl"]
