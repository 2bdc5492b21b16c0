"""Where the things of a finished run are, and the commands that go on from here: the last lines of `vlmrl train`."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from vlmrl.config.schema import Config

SUITES = {"shell": "toy_video", "shell_stays": "toy_video", "grounding": "toy_grounding"}
"""Kind of generated world -> the suite that asks it. The held-out questions of both shell games are the same."""


def closing_lines(path: Path, cfg: Config) -> list[str]:
    """Where the model and the report of a finished run are, and the commands that go on from here."""
    final, report, best = path / "final", path / "report.html", path / "best"
    out = [f"model:    {final}" + (f"   (the best evaluation: {best})" if best.exists() else "")]
    if report.exists():
        out.append(f"report:   {report}")
    held_out, program = _held_out(cfg), _program()
    evaluate = shlex.join([*program, "eval", str(final), *(held_out or ["--suite"])])
    names = "" if held_out else f" NAME   (names: {shlex.join([*program, 'list', 'suites'])})"
    out.append(f"evaluate: {evaluate}{names}")
    return [*out, f"look:     {shlex.join([*program, 'view', str(path)])}"]


def _held_out(cfg: Config) -> list[str]:
    """What the run asked at its end, as `vlmrl eval` takes it; empty where no suite and no file of rows is known."""
    toy = cfg.toy.world.kind if cfg.data.root == "toy" and cfg.toy is not None else None
    if suite := cfg.eval.suite or SUITES.get(toy or ""):
        return ["--suite", suite]
    if toy is not None or cfg.eval.source is None:
        return []
    root = Path(cfg.data.root).expanduser()
    rows = root / cfg.eval.source.path
    return ["--rows", str(rows), *([] if rows.parent == root else ["--data-root", str(root)])]


def _program() -> list[str]:
    """How this machine calls the command line: by its name where that is on the path."""
    return ["vlmrl"] if shutil.which("vlmrl") else [sys.executable, "-m", "vlmrl"]
