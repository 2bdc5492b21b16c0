"""A sampler whose settings do not fit the rows ends the run with the stage, the sampler and the reason."""

from __future__ import annotations

from pathlib import Path

from tests.support import runs


def test_a_sampler_that_does_not_fit_its_rows_ends_the_run_with_a_message(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    config = runs.small_config(*tiny_files, tmp_path, sampler={"name": "cascade", "by": "id", "order": ["no such domain"]})
    config["stages"] = config["stages"][1:]
    assert runs.run(config) == 64
    said = (tmp_path / "error.txt").read_text()
    assert said.startswith("stages.rl.sampler: sampler 'cascade': ")
