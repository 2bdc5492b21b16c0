"""A run whose recipe names a preset is the run of the same recipe with the slots written out, and every preset trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import runs
from vlmrl.config.layers import presets
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


NEEDS_MORE = {"gigpo", "fgrpo"}
"""An environment; a judge."""


@pytest.mark.slow
def test_every_preset_trains_a_step(tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    """One run with a stage for each."""
    out = runs.small_config(*tiny_files, tmp_path)
    rl = {key: value for key, value in out["stages"][1].items() if key not in ("advantage", "beta")}
    del rl["rollout"]["strategy"]
    own = {
        "dr_grpo": {"reduce": {"length": 10}},
        "luffy": {"reduce": {"length": 10}},
        "ngrpo": {"advantage": {"r_max": 2.1}, "filters": []},
        "g2rpo": {"filters": []},  # there is no reward `accuracy`
    }
    names = [preset.name for preset in presets() if "grpo" in preset.sections and preset.name not in NEEDS_MORE]
    once = {"steps": 1, "dynamic_sampling": {"max_batches": 1}}
    out["stages"], out["eval"] = [{**rl, **once, "name": name, "algorithm": name, **own.get(name, {})} for name in names], {}
    assert runs.run(load_mapping(out, []).config.model_dump(mode="json"), timeout=600) == 0
    lines = [json.loads(line) for line in (tmp_path / "small" / "metrics.jsonl").read_text().splitlines()]
    moved = {line["stage"] for line in lines if line.get("grad_norm", 0.0) > 0}
    assert moved == set(names)
