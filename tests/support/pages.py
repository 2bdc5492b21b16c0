"""Small runs and evaluations of every drawn answer type, for tests of pages: pictures with known things at known places."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl import __version__
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.evals.score.records import Record, Think
from vlmrl.extras.pages.kept.asked import QUESTIONS, keep_pixels, question_line
from vlmrl.media.store import ProcessedMedia
from vlmrl.types import MediaHandle, MediaRef, Sample

HEIGHT, WIDTH = 112, 168
FPS = 2.0


def sample(name: str, answer_type: str, gt: Mapping[str, Any], *, meta: Mapping[str, Any] | None = None, **more: Any) -> Sample:
    values: dict[str, Any] = {
        "id": name,
        "task": f"{answer_type}_task",
        "question": f"Question {name}?",
        "media": (MediaRef(kind="image", path=f"{name}.png"),),
        "answer": json.dumps(gt),
        "source": "rows.jsonl:1",
    }
    return Sample(answer_type=answer_type, gt=gt, meta={"frame": "norm1000"} if meta is None else meta, **{**values, **more})


def picture(
    boxes: Sequence[Sequence[float]] = ((250, 250, 500, 750),), *, count: int = 1, size: tuple[int, int] = (HEIGHT, WIDTH)
) -> np.ndarray:
    """uint8 [count, h, w, 3]: a soft background with one red box each, in thousandths."""
    height, width = size
    frames = np.empty((count, height, width, 3), dtype=np.uint8)
    frames[..., 0] = np.linspace(205, 235, width, dtype=np.uint8)
    frames[..., 1] = np.linspace(210, 230, height, dtype=np.uint8)[:, None]
    frames[..., 2] = 225
    for i in range(count):
        x1, y1, x2, y2 = (round(v * side / 1000) for v, side in zip(boxes[i % len(boxes)], (width, height, width, height), strict=True))
        frames[i, y1:y2, x1:x2] = (196, 64, 58)
    return frames


def media(frames: np.ndarray, *, video: bool = False, original: tuple[int, int] | None = None) -> ProcessedMedia:
    count, height, width = frames.shape[:3]
    grid = (max(1, count // 2) if video else 1, height // 14, width // 14)
    return ProcessedMedia(
        handle=MediaHandle(
            kind="video" if video else "image",
            key=hashlib.sha256(frames.tobytes()).hexdigest(),
            grid_thw=grid,
            tokens=grid[0] * grid[1] * grid[2] // 4,
        ),
        frames=frames,
        times=np.arange(count) / FPS if video else None,
        pixel_values=np.zeros((1, 1), dtype=np.float32),
        original_size=original or (height, width),
        duration=count / FPS if video else None,
    )


def moving(count: int) -> list[tuple[float, float, float, float]]:
    """A box that goes to the right, one place per frame, in thousandths."""
    return [(60 + 100 * i, 300, 260 + 100 * i, 700) for i in range(count)]


TRACK = {f"{i / FPS:g}": list(box) for i, box in enumerate(moving(8))}
ROWS: dict[str, tuple[Sample, ProcessedMedia]] = {
    s.id: (s, m)
    for s, m in (
        (sample("box-1", "bbox", {"boxes": [[250, 250, 500, 750]]}, question="Where is the red block?"), media(picture())),
        (
            sample("box-2", "bbox", {"boxes": [[600, 100, 900, 400]]}, question="Where is the red block?"),
            media(picture([(600, 100, 900, 400)])),
        ),
        (
            sample("click-1", "action", {"action": {"action": "click", "coordinate": [375, 500], "box": [250, 250, 500, 750]}}, meta={}),
            media(picture()),
        ),
        (
            sample("point-1", "point", {"points": [[42, 56], [63, 28]]}, meta={"frame": "pixel"}),
            media(picture(), original=(HEIGHT, WIDTH)),
        ),
        (
            sample("span-1", "time_span", {"time": [1.0, 3.0]}, meta={}, question="When is the block in the middle?"),
            media(picture(moving(8), count=8), video=True),
        ),
        (
            sample("track-1", "tracking", {"track": TRACK}, meta={"frame": "norm1000", "track_unit": "s"}),
            media(picture(moving(8), count=8), video=True),
        ),
        (
            sample(
                "tube-1", "spatio_temporal", {"tube": {"time": [0.5, 2.0], "boxes": TRACK}}, meta={"frame": "norm1000", "track_unit": "s"}
            ),
            media(picture(moving(8), count=8), video=True),
        ),
        (
            sample("highlight-1", "highlight", {"highlights": [[0.5, 4.0], [2.5, 2.0]]}, meta={}),
            media(picture(moving(8), count=8), video=True),
        ),
        (
            sample(
                "segment-1",
                "segmentation",
                {"segmentation": {"boxes": [250, 250, 500, 750], "positive_points": [[375, 500]], "negative_points": [[800, 500]]}},
            ),
            media(picture()),
        ),
    )
}
GOOD: dict[str, str] = {
    "box-1": '{"boxes": [[260, 240, 510, 740]]}',
    "box-2": '{"boxes": [[600, 100, 900, 400]]}',
    "click-1": '{"action": "click", "coordinate": [380, 480]}',
    "point-1": '{"points": [[42, 56], [64, 30]]}',
    "span-1": "1.0 to 2.5",
    "track-1": json.dumps({"boxes": {key: [x1 + 20, y1, x2 + 20, y2] for key, (x1, y1, x2, y2) in TRACK.items()}}),
    "tube-1": json.dumps({"time": [0.5, 2.0], "boxes": TRACK}),
    "highlight-1": '{"highlights": [[0.5, 4.0], [3.0, 1.0]]}',
    "segment-1": '{"boxes": [250, 250, 500, 700], "positive_points": [[370, 480]], "negative_points": [[820, 520]]}',
}
POOR: dict[str, str] = {
    "box-1": '{"boxes": [[500, 500, 900, 900]]}',
    "box-2": '{"boxes": [[600, 100, 900, 400]]}',
    "click-1": '{"action": "click", "coordinate": [900, 100]}',
    "point-1": '{"points": [[150, 100]]}',
    "span-1": "3.5 to 2.0",
    "track-1": "nothing to follow",
    "tube-1": json.dumps({"time": [2.0, 4.0], "boxes": {"0": [0, 0, 1200, 500]}}),
    "highlight-1": '{"highlights": [[3.5, 1.0]]}',
    "segment-1": '{"boxes": [100, 100, 300, 300], "positive_points": [[200, 200]], "negative_points": [[375, 500]]}',
}


def record(name: str, answer: str, score: float, *, model: str = "base", thought: str | None = "It is there.", **more: Any) -> Record:
    s = ROWS[name][0]
    text = f"<answer>{answer}</answer>" if thought is None else f"<think>{thought}</think><answer>{answer}</answer>"
    values: dict[str, Any] = {
        "model": model,
        "sample_id": name,
        "task": s.task,
        "cluster": name,
        "sample_hash": name,
        "prompt_ids_hash": "p",
        "answer_format": "think",
        "answer_type": s.answer_type,
        "text": text,
        "answer": answer,
        "status": "ok",
        "format_ok": True,
        "pred": (1.0, 2.5) if s.answer_type == "time_span" else (),
        "gold": (),
        "scores": {ANSWER_TYPES[s.answer_type].main: score} | ({"iou": score} if s.answer_type in ("bbox", "segmentation") else {}),
        "think": Think(has=thought is not None, tokens=3 if thought else 0),
        "n_in": 50,
        "n_out": 20,
        "finish": "stop",
        "unclosed": False,
        "fingerprint": f"weights-{model}",
        "settings": {"max_new_tokens": 64, "temperature": 0.0, "top_p": 1.0},
    }
    return Record(**{**values, **more})


def poor(model: str = "base") -> list[Record]:
    """Bad answers, except to `box-2`; that to `track-1` cannot be read, that to `span-1` was cut off."""
    rows = [record(name, text, 1.0 if name == "box-2" else 0.1, model=model) for name, text in POOR.items()]
    out = []
    for row in rows:
        changes: dict[str, Any] = {}
        if row.sample_id == "track-1":
            changes = {"status": "unparsable", "pred": None, "scores": {"track_iou": 0.0}}
        elif row.sample_id == "span-1":
            changes = {
                "status": "truncated",
                "pred": None,
                "answer": None,
                "finish": "length",
                "scores": {"tiou": 0.0},
                "text": "<think>It",
            }
        out.append(_changed(row, changes))
    return out


def good(model: str = "rl") -> list[Record]:
    """Good answers without thoughts, except to `box-2`, which is missed."""
    rows = [record(name, text, 0.9, model=model, thought=None) for name, text in GOOD.items()]
    missed = '{"boxes": [[0, 0, 90, 90]]}'
    changes = {"scores": {"iou": 0.0}, "answer": missed, "text": f"<answer>{missed}</answer>"}
    return [_changed(r, changes) if r.sample_id == "box-2" else r for r in rows]


def _changed(row: Record, changes: Mapping[str, Any]) -> Record:
    return dataclasses.replace(row, **changes)


def make_eval(out: Path, model: str, records: Mapping[str, Sequence[Record]], *, frames: bool = True) -> Path:
    """A folder as `vlmrl eval` writes it: records by task, a summary and the frames of all rows."""
    out.mkdir(parents=True)
    for task, rows in records.items():
        (out / f"{task}.jsonl").write_bytes(b"".join(r.line() for r in rows))
    suite = {"id": "small", "version": 1, "tasks": [{"id": task} for task in records]}
    summary = {
        "suite": suite,
        "model": model,
        "fingerprint": f"weights-{model}",
        "vlmrl": __version__,
        "tasks": {task: {} for task in records},
    }
    (out / "summary.json").write_text(json.dumps(summary))
    if frames:
        save_frames_of(out / "frames", [r.sample_id for rows in records.values() for r in rows])
    return out


def make_run(path: Path, stages: Mapping[str, Sequence[Record]], *, frames: bool = True) -> Path:
    """A run directory with these evaluations and nothing of its training."""
    (path / "eval").mkdir(parents=True)
    (path / "config.yaml").write_text("run: {name: small, seed: 1}\n")
    (path / "eval" / "order.json").write_text(json.dumps(list(stages)))
    for name, rows in stages.items():
        (path / "eval" / f"{name}.jsonl").write_bytes(b"".join(r.line() for r in rows))
    if frames:
        save_frames_of(path / "eval" / "frames", [r.sample_id for rows in stages.values() for r in rows])
    return path


def save_frames_of(folder: Path, names: Sequence[str]) -> None:
    for name in dict.fromkeys(names):
        keep_row(folder, name, *ROWS[name], content=name)


def keep_row(folder: Path, name: str, row: Sample, shown: ProcessedMedia, **more: Any) -> None:
    """What an evaluation keeps of a row, whose records have the hash `name`."""
    keep_pixels(folder, shown)
    with (folder / QUESTIONS).open("a") as file:
        file.write(json.dumps({"hash": name, **question_line(row, [shown.handle], shown=True), **more}) + "\n")
