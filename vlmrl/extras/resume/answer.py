"""What `vlmrl train` says of a run that is finished, from its files: a start that has nothing to train needs no torch.

It answers only where a full start would say the same: the recipe, with every value, and the version are those of which the run keeps that
it ended well (`FINISHED`), and everything that it made is as it was written (`run.finished`). Anything else is left to the full start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmrl import __version__
from vlmrl.cli.names import say
from vlmrl.config.load import load
from vlmrl.errors import ConfigError
from vlmrl.extras.resume.closing import closing_lines
from vlmrl.run.finished import lost_of_finished
from vlmrl.run.rundir import RunDir, locked
from vlmrl.run.ui import Ui


def answered(recipe: str | Path, overrides: Sequence[str]) -> bool:
    """Say what a finished run has come to, and whether that was possible. Ranks of a launcher leave it to the full start.

    Raises:
        CheckpointError: something that the run has made is damaged and cannot be made again.
        RunBusyError: another process is at the run.
    """
    try:
        loaded = load(recipe, list(overrides))
    except ConfigError:
        return False  # the full start tells it, with what is wrong of methods
    run = RunDir(path=Path(loaded.config.run.root) / loaded.config.run.name, resumed=True, finished=True)
    mark = _mark(run.path)
    if "WORLD_SIZE" in os.environ or (mark.get("recipe"), mark.get("vlmrl")) != (loaded.hash, __version__):
        return False
    if any(run.eval.glob("*.jsonl")) and not run.report.exists():
        return False
    ui = Ui()
    with locked(run.path / "LOCK"):
        if lost_of_finished(run, loaded.config, ui.say):
            return False
    for note in loaded.notes:
        say(note)
    ui.say(f"{run.path} is already finished, by this recipe and version, and its files are as they were written")
    for line in mark.get("come_to", ()):
        ui.say(str(line))
    ui.print_exactly(closing_lines(run.path, loaded.config))
    return True


def _mark(path: Path) -> dict[str, Any]:
    """What the mark of a finished run says; nothing where there is none, or that of an earlier version."""
    try:
        value = json.loads((path / "FINISHED").read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
