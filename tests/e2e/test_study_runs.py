"""A study of real runs of the tiny model, in processes of their own, with starts and a measure of one's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.support import runs
from vlmrl.extras.study.conduct import Conductor
from vlmrl.extras.study.read import read_study
from vlmrl.extras.study.report import Report

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_real_runs_from_a_file_to_a_report(tiny_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "tiny.yaml").write_text(json.dumps(runs.small_config(*tiny_files, tmp_path)))
    asked = {
        "recipe": "tiny.yaml",
        "starts": {"sft": {"stages": ["sft"]}},
        "arms": {"plain": {"start": "sft"}, "steep": {"start": "sft", "set": {"stages.rl.optim.lr": 0.01}}},
        "seeds": 2,
        "measure": {"metric": "miou", "at": "auc"},
        "delta": 0.1,
        "spread": 0.1,
        "comparisons": [{"arm": "steep", "control": "plain"}],
        "premises": [{"text": "it is trained", "arm": "plain", "measure": "mean grad_norm", "low": 0.0}],
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(asked))
    conductor = Conductor(read_study(tmp_path / "study.yaml"), tmp_path / "out")
    conductor.fix()
    assert conductor.work(print, jobs=2) == []
    report = Report(conductor)
    report.write()
    stored = json.loads((tmp_path / "out/study.json").read_text())
    assert stored["decided"] is True
    found = stored["comparisons"]["steep-plain"]
    assert found["primary"]["seeds"] == 2
    assert found["premises"][0]["met"] is True
    assert stored["curves"]["eval/miou"]["plain"]["x"] == [0, 3, 4], "the arms have the one stage that their start has not"
    for path in (path for of in stored["arms"].values() for path in of):
        config = yaml.safe_load((tmp_path / "out" / path / "config.yaml").read_text())
        assert config["model"]["path"] == str(tmp_path / "out/starts" / f"sft-{path[-2:]}" / "final")
        assert [stage["name"] for stage in config["stages"]] == ["rl"]
    assert {line["kind"] for line in stored["costs"]} == {"start", "arm"}
