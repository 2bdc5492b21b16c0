"""Videos that are given as pictures go through check, training, evaluation and resume as files do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support import runs
from tests.support.media import read_video
from vlmrl.config.schema import Config
from vlmrl.evals.score.records import read_records
from vlmrl.extras.pages.documents.check import CheckRows
from vlmrl.methods import method_problems
from vlmrl.run.audit import audit
from vlmrl.run.ui import Ui

RATE = 4.0


def as_frames(world: Path, out: Path) -> Path:
    """The rows of a small world with each video replaced by its frames: a folder with a rate in every other row, else a list with times."""
    for rows in sorted(world.glob("*.jsonl")):
        lines: list[str] = []
        for number, line in enumerate(rows.read_text().splitlines()):
            row = json.loads(line)
            if isinstance(row.get("video"), str):
                folder = out / "frames" / Path(row["video"]).with_suffix("")
                row["video"] = _frames(world / row["video"], folder, out, as_folder=number % 2 == 0)
            lines.append(json.dumps(row))
        (out / rows.name).write_text("".join(line + "\n" for line in lines))
    return out


def _frames(video: Path, folder: Path, root: Path, *, as_folder: bool) -> dict[str, Any]:
    shown = read_video(video, fps=RATE, min_frames=2, max_frames=512)
    if not folder.exists():
        folder.mkdir(parents=True)
        for i, pixels in enumerate(shown.frames):
            Image.fromarray(np.asarray(pixels)).save(folder / f"{i}.png")
    count = len(shown.frames)
    if as_folder:
        return {"frames": str(folder.relative_to(root)), "fps": RATE}
    return {"frames": [str((folder / f"{i}.png").relative_to(root)) for i in range(count)], "times": [i / RATE for i in range(count)]}


def config(tiny_files: tuple[Path, Path], data: Path, root: Path, **media: Any) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    out = runs.small_config(tiny_files[0], data, root)
    out["media"] |= {"cache_bytes": 2**20, **media}  # small, so that frames are read and decoded again
    return out


@pytest.mark.slow
def test_a_run_on_pictures_is_killed_and_ends_with_the_same_bits(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    as_frames(tiny_files[1], data)
    whole = config(tiny_files, data, tmp_path / "whole")
    assert runs.run(whole) == 0
    cut = config(tiny_files, data, tmp_path / "cut", workers=1)
    assert runs.run(cut, "step.before_update@5:kill") < 0
    assert runs.run(cut) == 0
    assert runs.outcome(cut) == runs.outcome(whole), "killed, resumed and decoded in workers"
    records = read_records(runs.run_dir(whole) / "eval" / "rl.jsonl")
    assert len(records) == 6
    assert all("frames" in record.cluster for record in records)
    assert (runs.run_dir(whole) / "report.html").is_file()


def test_check_reads_pictures_as_it_reads_files(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    as_frames(tiny_files[1], data)
    cfg = Config.model_validate(config(tiny_files, data, tmp_path / "run"))
    assert not method_problems(cfg)
    page = CheckRows(budget=cfg.data.max_prompt_tokens)
    report = audit(cfg, model=str(tiny_files[0]), data=data, ui=Ui(quiet=True), page=page)
    assert not report.problems
    text = page.write(tmp_path / "check.html").read_text(encoding="utf-8")
    assert "data:image/" in text
    assert "toy-train-" in text

    row = json.loads((data / "train.jsonl").read_text().splitlines()[1])
    (data / row["video"]["frames"][1]).unlink()
    problems = "\n".join(audit(cfg, model=str(tiny_files[0]), data=data, ui=Ui(quiet=True)).problems)
    assert f"missing: {row['video']['frames'][1]}: no such file" in problems
