"""A Parquet file as hubs hold them: the pictures stand in the rows as bytes, under columns of no known shape."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}
SOURCE = {
    "media_folder": "pictures",
    "answer_type": "exact_text",
    "columns": {"prompt": "problem", "answer": "solution", "images": "image"},
}
"""What a `source` has to say of them beside the path."""


def write_parquet(path: Path) -> Path:
    """One row per colour."""
    rows = [{"problem": f"Which colour is shape {k}?", "solution": name, "image": _png(name)} for k, name in enumerate(COLOURS)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _png(colour: str) -> dict[str, bytes | None]:
    held = io.BytesIO()
    Image.new("RGB", (64, 64), COLOURS[colour]).save(held, "PNG")
    return {"bytes": held.getvalue(), "path": None}
