"""A run whose recipe names a preset is the run of the same recipe with the slots written out: either goes on with the other."""

from __future__ import annotations

from pathlib import Path

from tests.support import runs
from vlmrl.config.load import load_mapping

DAPO = {
    "advantage": {"name": "grpo"},
    "filters": [{"name": "zero_variance"}],
    "dynamic_sampling": {"max_batches": 2},
    "loss": {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28},
    "reduce": {"name": "token_mean"},
    "beta": 0.0,
}
PRESET = {"algorithm": "dapo", "dynamic_sampling": {"max_batches": 2}}


def config(files: tuple[Path, Path], root: Path, stage: dict) -> dict:
    out = runs.small_config(*files, root)
    rl = {key: value for key, value in out["stages"][1].items() if key not in DAPO}
    out["stages"], out["eval"] = [rl | {"steps": 2} | stage], {}
    return load_mapping(out, []).config.model_dump(mode="json")


def test_a_run_goes_on_with_the_slots_written_out(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    whole = config(tiny_files, tmp_path / "whole", DAPO)
    named, written = (config(tiny_files, tmp_path / "one", stage) for stage in (PRESET, DAPO))
    assert runs.run(whole) == 0
    assert runs.run(named, "step.before_update@2:kill") == -9
    assert runs.run(written) == 0
    assert runs.outcome(written) == runs.outcome(whole)
