"""A study whose runs are stand-ins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import study_stand_in
from tests.unit.evals.test_evals_compare import choice
from vlmrl.extras.study.conduct import Conductor
from vlmrl.extras.study.spec import Study

RECIPE = """
run: {name: mine}
model: {path: m}
stages:
  - {kind: grpo, name: rl, source: {path: a.jsonl}, steps: 4, rewards: [{name: exact}], optim: {lr: 1.0e-6}}
eval: {source: {path: t.jsonl}}
"""
PROGRAM = (sys.executable, study_stand_in.__file__)


class Place:
    """A folder with a recipe and stand-in runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recipe = folder / "mine.yaml"
        self.recipe.write_text(RECIPE)
        (folder / "record.json").write_bytes(choice([1.0])[0].line())

    def asked(self, **changes: Any) -> dict[str, Any]:
        """The values of a file, by default two arms of which one learns more."""
        given: dict[str, Any] = {
            "name": "s",
            "recipe": str(self.recipe),
            "arms": {"slow": [], "fast": {"stages.rl.optim.lr": 1e-5}},
            "seeds": 3,
            "measure": {"metric": "exact", "at": "end"},
            "delta": 0.1,
            "spread": 0.05,
            "comparisons": [{"arm": "fast", "control": "slow"}],
        }
        return {key: value for key, value in (given | changes).items() if value is not None}

    def conductor(self, **changes: Any) -> Conductor:
        return Conductor(Study.model_validate(self.asked(**changes)), self.folder / "out", program=PROGRAM)

    def started(self) -> list[str]:
        """Every start of a run so far."""
        file = self.folder / "started.txt"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    return Place(tmp_path)
