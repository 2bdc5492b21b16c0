"""The benchmark of claims from the command to the page, with runs of two steps: nothing is learnt, everything is exercised."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims import __main__ as claims
from benchmarks.claims.recorder import groups_file
from benchmarks.claims.regimes import REGIMES
from benchmarks.claims.studies import Scale, study_of, wanted
from benchmarks.claims.table import CLAIMS
from vlmrl.extras.study.conduct import Conductor
from vlmrl.extras.study.runs import with_needs


def settings(name: str, root: Path, **changes: Any) -> argparse.Namespace:
    given: dict[str, Any] = {
        "only": [name],
        "seeds": None,
        "list": False,
        "quick": True,
        "pilot": False,
        "jobs": 2,
        "out": root / "runs",
        "set": [],
    }
    return argparse.Namespace(**(given | {"machine": ["run.threads=1"], "write": root / "docs" / "claims"} | changes))


def run_claim(name: str, root: Path) -> dict[str, Any]:
    claims.run(settings(name, root))
    return json.loads((root / "docs/claims.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mc_grpo", "tempsamp", "ton"])
def test_a_quick_trial_from_the_command_to_the_page(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One claim of each regime: recorded groups, a ground-truth row, and arms with fine-tuned starts of their own."""
    claim = CLAIMS[name]
    found = run_claim(name, tmp_path)
    assert set(found["measured"][claim.regime]) == set(claim.arms())
    assert found["quick"] is True
    stored = found["claims"][name]
    # one seed: no premise is proven wrong by accident of two steps alone, and nothing can hold
    assert stored["verdict"] in ("cannot be told", "premise not met")
    assert stored["primary"]["seeds"] == 1
    assert stored["primary"]["low"] is None
    page = (tmp_path / "docs/claims.md").read_text()
    assert "This decides nothing" in page
    assert "(one seed)" in page

    # recorded groups are there, step by step
    regime = REGIMES[claim.regime]
    conductor = Conductor(study_of(regime, CLAIMS.values(), Scale(quick=True)), tmp_path / "runs" / claim.regime)
    runs = wanted(conductor, [claim])
    assert [groups_file(run.folder).exists() for run in runs] == [regime.arm(run.arm).records for run in runs]

    # a second command runs nothing anew
    every = with_needs(runs)
    before = {run.mark: run.mark.stat().st_mtime_ns for run in every}
    assert run_claim(name, tmp_path)["measured"] == found["measured"]
    assert {run.mark: run.mark.stat().st_mtime_ns for run in every} == before
    capsys.readouterr()
    claims.run(settings(name, tmp_path, list=True))
    assert f"{len(every)} of {len(every)} runs are there" in capsys.readouterr().out


def test_the_runs_of_a_claim_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims.run(settings("tempsamp", tmp_path, list=True, quick=False, seeds=2))
    said = capsys.readouterr().out
    assert "0 of 8 runs are there" in said
    assert said.count("to run") == 8
    assert not (tmp_path / "runs").exists()


def test_pilots_have_seeds_that_the_plan_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims.run(settings("ton", tmp_path, list=True, quick=False, pilot=True, seeds=4))
    said = capsys.readouterr().out
    seeds = {int(line.rpartition("s")[2]) for line in said.splitlines() if "to run" in line}
    assert seeds == {101, 102, 103, 104}
    assert min(seeds) >= max(regime.seeds for regime in REGIMES.values())
    # an arm of the first three seeds is one of the first three pilots
    assert said.count("arm answers-s") == 3
