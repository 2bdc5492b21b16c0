"""The benchmark of claims from the command to the page, with runs of two steps: nothing is learnt, everything is exercised."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import claims
from benchmarks.claims_cells import CLAIMS, cells_of

SMALL = [
    "toy.world.pretrain=12",
    "toy.world.sft=8",
    "toy.world.train=12",
    "toy.world.validation=1",
    "toy.world.test=12",
    "toy.base.steps=2",
    "toy.base.batch=4",
    "eval.max_new_tokens=6",
    "stages.rl.steps=2",
    "stages.rl.rollout.num_generations=4",
    "stages.rl.rollout.prompts_per_step=6",
    "stages.rl.rollout.max_new_tokens=6",
]
SFT = ["stages.sft.steps=2", "stages.sft.batch=4"]
OWN: dict[str, list[str]] = {"g2rpo": [], "curriculum_gui": [], "fgrpo": SFT, "ton": SFT, "tempsamp": SFT}


def settings(name: str, root: Path) -> argparse.Namespace:
    machine = ["run.threads=1", f"toy.cache={root / 'cache'}"]
    return argparse.Namespace(
        only=[name],
        seeds=[0],
        plan=False,
        jobs=2,
        out=root / "runs",
        set=[*SMALL, *OWN[name]],
        machine=machine,
        write=root / "docs" / "claims",
    )


def run(name: str, root: Path) -> dict[str, Any]:
    claims.run(settings(name, root))
    return json.loads((root / "docs/claims.json").read_text())["claims"][name]


def test_from_the_command_to_the_page(tmp_path: Path) -> None:
    found = run("g2rpo", tmp_path)
    assert set(found["measured"]) == {"G2RPO", "GRPO"}
    tasks = ("toy_bars", "toy_boxes", "toy_counting")
    for of in found["measured"].values():
        for task in tasks:
            assert -1 <= of["0"][f"gain {task}"] <= 1
            assert f"skewness {task}" in of["0"]
            assert f"kurtosis {task}" in of["0"]
    assert set(found["best_constant"]) == set(tasks)
    assert 0.2 <= found["best_constant"]["toy_counting"]["score"] <= 1
    assert found["verdict"] == "cannot be told at this size"
    assert "(one seed)" in (tmp_path / "docs/claims.md").read_text()

    # a second command runs nothing anew, and one for other settings has runs of its own
    cells = cells_of(CLAIMS["g2rpo"], [0], claims.RECIPES, SMALL)
    before = {cell.name: (tmp_path / "runs" / cell.name / "FINISHED").stat().st_mtime_ns for cell in cells}
    assert run("g2rpo", tmp_path) == found
    assert {cell.name: (tmp_path / "runs" / cell.name / "FINISHED").stat().st_mtime_ns for cell in cells} == before
    others = cells_of(CLAIMS["g2rpo"], [0], claims.RECIPES, [*SMALL, "stages.rl.optim.lr=1e-5"])
    assert not {cell.name for cell in cells} & {cell.name for cell in others}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "g2rpo"])
def test_every_claim_can_be_run(name: str, tmp_path: Path) -> None:
    found = run(name, tmp_path)
    assert set(found["measured"]) == set(CLAIMS[name].arms)
    assert len(found["conditions"]) == len(CLAIMS[name].conditions) or name in ("fgrpo", "ton", "tempsamp")
    for condition in found["conditions"]:
        assert condition["seeds"] == 1
        assert condition["low"] is None
