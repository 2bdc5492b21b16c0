"""What a run directory holds for its report: metrics, recipe, environment, evaluation records and the frames of held-out questions."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vlmrl import fs
from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.records import Record, read_records

MAX_STRIP_PIXELS = 1_500_000
"""Pixels kept of one question. Longer videos keep evenly spaced frames, at the size at which the model saw them."""
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The pixels that the model saw of one question."""

    sample_id: str
    question: str
    gold: tuple[float, float] | None
    """Seconds."""
    duration: float | None
    """Seconds."""
    times: tuple[float, ...] | None
    """Seconds of each frame kept; None for images."""
    size: tuple[int, int]
    """(height, width) of a frame in pixels."""
    count: int
    """Frames kept."""
    total: int
    """Frames that the model saw."""
    strip: str
    """The kept frames side by side, as PNG in base64."""


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Everything that the report needs."""

    path: Path
    config_text: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    """Lines of metrics.jsonl, non-finite values restored."""
    records: dict[str, list[Record]]
    """By stage, in the order of evaluation."""
    frames: list[Frames]
    """In the order of the records."""
    finished: bool

    @property
    def config_hash(self) -> str:
        return hashlib.sha256(self.config_text.encode()).hexdigest()


def load_run(path: Path) -> RunFiles:
    """Read a run directory. A run that has not come to metrics or evaluations yet has none; that is no error.

    Raises:
        ConfigError: not a run directory.
        StorageError: a file is damaged.
    """
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"{path}: not a run directory (no config.yaml); give the folder <run.root>/<run.name>")
    text = (path / "config.yaml").read_text(encoding="utf-8")
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise StorageError(f"{path / 'config.yaml'}: not YAML: {error}") from error
    order = _json(path / "eval" / "order.json", [])
    records = {name: read_records(path / "eval" / f"{name}.jsonl") for name in order}
    place = {record.sample_id: n for rows in records.values() for n, record in enumerate(rows)}
    frames = [_read_frames(file) for file in sorted((path / "eval" / "frames").glob("*.json"))]
    return RunFiles(
        path=path,
        config_text=text,
        config=config if isinstance(config, dict) else {},
        environment=_json(path / "environment.json", {}),
        metrics=read_metrics(path / "metrics.jsonl") if (path / "metrics.jsonl").exists() else [],
        records=records,
        frames=sorted(frames, key=lambda f: (place.get(f.sample_id, len(place)), f.sample_id)),
        finished=(path / "FINISHED").exists(),
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file. A last line without its newline was being written when the process died, and is left out.

    Raises:
        StorageError: another line is not a JSON object.
    """
    out: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise StorageError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise StorageError(f"{path}:{number}: not a JSON object")
        out.append({key: _NON_FINITE.get(value, value) if isinstance(value, str) else value for key, value in row.items()})
    return out


def save_frames(
    run_dir: Path,
    sample_id: str,
    *,
    frames: np.ndarray,
    times: Sequence[float] | np.ndarray | None,
    question: str,
    gold: Sequence[float] | None,
    duration: float | None,
) -> Path:
    """Keep the pixels that the model saw of one held-out question, for the report.

    Args:
        frames: uint8 [T, h, w, 3]; times: [T] in seconds, None for images; gold: (start, end) in seconds.

    Raises:
        ValueError: another shape or type, or not one time per frame.
        StorageError: it cannot be written.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.shape[0]:
        raise ValueError(f"sample '{sample_id}': frames are {frames.dtype} {list(frames.shape)}, expected uint8 [T, h, w, 3]")
    if times is not None and len(times) != len(frames):
        raise ValueError(f"sample '{sample_id}': {len(times)} times for {len(frames)} frames")
    kept = kept_frames(len(frames), frames.shape[1] * frames.shape[2])
    value = {
        "sample_id": sample_id,
        "question": question,
        "gold": None if gold is None else [float(gold[0]), float(gold[1])],
        "duration": None if duration is None else float(duration),
        "times": None if times is None else [float(times[i]) for i in kept],
        "size": [int(frames.shape[1]), int(frames.shape[2])],
        "count": len(kept),
        "total": len(frames),
        "strip": base64.b64encode(_png(np.concatenate([frames[i] for i in kept], axis=1))).decode(),
    }
    path = run_dir / "eval" / "frames" / f"{safe_name(sample_id)}.json"
    data = json.dumps(value, sort_keys=True).encode()
    if not path.exists() or path.read_bytes() != data:
        fs.mkdir(path.parent)
        fs.write_bytes(path, data)
    return path


def kept_frames(count: int, pixels: int) -> list[int]:
    """Which of `count` frames of `pixels` pixels each are kept: all, or evenly spaced ones, the first and the last among them."""
    most = min(count, max(2, MAX_STRIP_PIXELS // max(1, pixels)))
    if most >= count:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def safe_name(sample_id: str) -> str:
    """A file name for any id: readable, and unique by its hash."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", sample_id).strip(".")[:60] + "-" + hashlib.sha256(sample_id.encode()).hexdigest()[:10]


def _png(image: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _read_frames(path: Path) -> Frames:
    value = _json(path, None)
    try:
        return Frames(
            sample_id=value["sample_id"],
            question=value["question"],
            gold=None if value["gold"] is None else (float(value["gold"][0]), float(value["gold"][1])),
            duration=value["duration"],
            times=None if value["times"] is None else tuple(float(t) for t in value["times"]),
            size=(int(value["size"][0]), int(value["size"][1])),
            count=int(value["count"]),
            total=int(value["total"]),
            strip=base64.b64encode(base64.b64decode(value["strip"], validate=True)).decode(),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StorageError(f"{path}: not frames of a question ({error!r}); remove the file and write the report again") from error


def _json(path: Path, default: Any) -> Any:
    if not path.exists():
        return default
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise StorageError(f"{path}: not JSON: {error}") from error
