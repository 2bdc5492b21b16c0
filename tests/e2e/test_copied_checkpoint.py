"""A finished run's model, copied away from its run, is asked without a word about how."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from typer.testing import CliRunner

from tests.support import runs
from vlmrl.cli import app
from vlmrl.evals.ask.asking import asking_of
from vlmrl.train.manifest import damage


def test_a_copy_is_asked_as_the_run_was(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = runs.small_config(*tiny_files, tmp_path / "runs")
    config["eval"] = {}
    for stage, steps in zip(config["stages"], (1, 1), strict=True):
        stage["steps"] = steps
    assert runs.run(config, timeout=900) == 0
    final = runs.run_dir(config) / "final"
    saved = json.loads((final / "vlmrl.json").read_text())
    assert saved["positions"] == "max"
    assert saved["origin"] | {"recipe": ""} == {"run": "small", "stage": "rl", "recipe": "", "base_model": tiny_files[0].name}
    assert set(saved["versions"]) == {"vlmrl", "torch", "transformers"}
    assert saved["asked"]["answer_types"] == ["time_span"]
    assert saved["asked"]["max_new_tokens"] == 10
    assert json.loads((runs.run_dir(config) / "stages" / "sft" / "vlmrl.json").read_text())["origin"]["stage"] == "sft"
    assert str(tmp_path) not in (final / "vlmrl.json").read_text()
    assert damage(final) == []

    copy = tmp_path / "elsewhere" / "model"
    shutil.copytree(final, copy)
    there, here = asking_of(copy), asking_of(final)
    assert (there.media, there.answer_format, there.answer_type) == (here.media, here.answer_format, "time_span")
    assert (there.media.min_pixels, there.media.max_pixels, there.media.max_frames) == (3136, 4704, 32)
    row = json.loads((tiny_files[1] / "test.jsonl").read_text().splitlines()[0])
    video = tiny_files[1] / row["video"]
    asked = CliRunner().invoke(app, ["serve", str(copy), "--ask", row["prompt"], "--video", str(video), "--json", "--device", "cpu"])
    assert asked.exit_code == 0, asked.output
    answer = json.loads(next(line for line in asked.output.splitlines() if line.startswith("{")))
    assert answer["tokens"] <= 10
