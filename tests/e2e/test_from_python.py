"""A run from Python: train a mapping, evaluate base and result on a suite, compare."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import vlmrl
from tests.support import runs
from vlmrl import cli
from vlmrl.extras.starter.recipe import write_starter

SUITE = """id: tiny
version: 1
tasks:
  - id: t
    source: test.jsonl
    answer_format: think_or_not
    answer_type: time_span
    max_new_tokens: 8
    media: {max_pixels: 4704, max_frames: 32}
"""


@pytest.mark.slow
def test_train_evaluate_compare(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    model, world = tiny_files
    (tmp_path / "suite.yaml").write_text(SUITE)
    run = vlmrl.train(runs.small_config(model, world, tmp_path / "runs"), ["stages.sft.steps=1", "stages.rl.steps=1"], quiet=True)
    assert run == tmp_path / "runs" / "small"
    assert (run / "final" / "config.json").is_file()
    assert vlmrl.train(runs.small_config(model, world, tmp_path / "runs"), ["stages.sft.steps=1", "stages.rl.steps=1"], quiet=True) == run
    for name, checkpoint in (("before", model), ("after", run / "final")):
        result = vlmrl.evaluate(checkpoint, tmp_path / "suite.yaml", tmp_path / name, data_root=world, limit=6, device="cpu")
        assert result.summaries["t"].n == 6
        assert (tmp_path / name / "t.jsonl").is_file()
    found = vlmrl.compare(tmp_path / "before", tmp_path / "after")
    assert [task.n for task in found.tasks] == [6]
    assert set(found.regressed) <= {"t"}


@pytest.mark.slow
def test_a_starter_with_its_data_passes_the_check(tiny_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of `vlmrl check` on a generated world: media, prompts, gold and junk answers under the starter's rewards."""
    model, world = tiny_files
    monkeypatch.chdir(tmp_path)
    write_starter(Path("mine.yaml"), "mine", task="grounding", model=str(model))
    monkeypatch.setattr(sys, "argv", ["vlmrl", "check", "mine", "--html", "rows.html", "media.max_pixels=4704", f"data.root={world}"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert Path("rows.html").is_file()
