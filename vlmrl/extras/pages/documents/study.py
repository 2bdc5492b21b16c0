"""The arms of a study, from its `study.json`, and numbers over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from vlmrl.errors import StorageError
from vlmrl.evals.score.recipes import NOT_MEASURED
from vlmrl.evals.score.table import figure
from vlmrl.extras.pages.documents.shapes import Doc
from vlmrl.metrics.intervals import paired_seeds

STUDY = "study.json"
SEEDS = 3
"""Least runs of an arm from which a t interval says something."""


def study_of(path: Path) -> dict[str, list[Path]] | None:
    """The arms of a study, name -> folders of its runs; None where there is none.

    Raises:
        StorageError: its file is damaged.
    """
    file = path / STUDY
    if not file.is_file():
        return None
    try:
        arms = json.loads(file.read_bytes())["arms"]
        return {str(name): [path / str(folder) for folder in folders] for name, folders in arms.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{file}: not a study ({error!r}): it needs 'arms', a name for each with a list of folders of runs") from error


def over_seeds(metric: str, values: Sequence[float]) -> Doc:
    """A mean over runs with a t interval, and a note on how many there are."""
    mean, n = statistics.fmean(values), len(values)
    bounds = paired_seeds([0.0] * n, values).bounds() if n >= SEEDS else None
    low, high = (None, None) if bounds is None else (bounds.low, bounds.high)
    interval = "" if low is None or high is None else f"[{figure(metric, low)}, {figure(metric, high)}]"
    note = f"mean over {n} seeds, " + ("95% t interval" if n >= SEEDS else "too few for an interval")
    note = f"one run: {NOT_MEASURED}" if n == 1 else note
    return {"mean": mean, "low": low, "high": high, "text": figure(metric, mean), "interval": interval, "why": "", "note": note}
