"""Run folders with kept groups for tests of the viewer: made by what training writes them with, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.kept import key_of, pixels, record
from vlmrl.extras.pages.kept import media
from vlmrl.extras.pages.kept.write import KeptWriter

VIDEO, PICTURE = key_of(1), key_of(2)


def make_run(path: Path, *, steps: int = 4, **more: Any) -> Path:
    """A run whose steps each keep two groups: a span in a video, and a box in a picture. `more` goes into each record's builder."""
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"schema": 1, "fixed": {}, "history": [{"notes": []}]}))
    (path / "config.yaml").write_text(json.dumps({"model": {"path": "toy"}, "stages": [{"name": "rl", "steps": steps}]}))
    lines = [
        {"stage": "rl", "step": n, "global_step": n, "wall": 0.0, "reward": n / steps, "loss": "NaN" if n == 2 else -0.1 * n}
        for n in range(1, steps + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    writer = KeptWriter(path / "groups" / "rank-0", budget=1 << 30, last_step=0)
    video, picture = pixels(VIDEO, count=8), pixels(PICTURE)
    for step in range(1, steps + 1):
        spans = [f"<think>from {n}</think><answer>{n}.0 to 3.0</answer>" for n in (0, 2)]
        span = record(step, 0, media=[video.handle], texts=spans, rewards=(0.5, 1.0), surprise=step / 10, **more)
        boxes = {"task": "boxes", "answer_type": "bbox", "answer": "[[250, 250, 500, 750]]", "gt": {"boxes": [[250, 250, 500, 750]]}}
        box = record(
            step,
            1,
            media=[picture.handle],
            sample="row-2",
            texts=["<think>a</think><answer>[[100, 100, 400, 800]]</answer>", "none"],
            rewards=(0.4, 0.0),
            surprise=0.05,
            meta={"frame": "norm1000"},
            **boxes | more,
        )
        for one, shown in ((span, video), (box, picture)):
            key = shown.handle.key
            writer.add(one, {key: media.encoded(shown, 8)} if writer.lacks([key]) else {})
    writer.sync()
    return path
