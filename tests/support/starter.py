"""Files of rows for `vlmrl new`, and the check of the recipe that it writes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from vlmrl.cli import app
from vlmrl.config.load import load
from vlmrl.config.schema import Config

Rows = list[dict[str, Any]]


def passes() -> Config:
    """`vlmrl check mine.yaml` finds nothing; the recipe."""
    done = CliRunner().invoke(app, ["check", "mine.yaml"])
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    assert "data: ok" in done.output
    return load("mine.yaml", []).config


def picture(path: Path, seed: int, size: tuple[int, int] = (64, 64)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)).resize(size, Image.Resampling.NEAREST).save(path)  # quick to pack
    return path


def png(seed: int) -> dict[str, Any]:
    held = io.BytesIO()
    rng = np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(held, "PNG")
    return {"bytes": held.getvalue(), "path": None}


def lines(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
