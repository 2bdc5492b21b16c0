"""The report of a study: verdicts in sentences and a table, premises and conditions, and each arm over its seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vlmrl.errors import StorageError
from vlmrl.extras.pages.documents.study import over_seeds, study_doc

PRIMARY = {"text": "auc exact", "compared": "new - old", "measure": "auc exact", "delta": 0.1, "effect": 0.2, "low": 0.05, "high": 0.35}
FOUND: dict[str, Any] = {
    **{"verdict": "holds", "remark": "", "arm": "new", "control": "old", "primary": {**PRIMARY, "sd": 0.1, "seeds": 3, "p": 0.01}},
    "premises": [{"text": "room to learn", "value": 0.97, "low": None, "high": 0.95, "met": False}],
    "power": {"holds": 0.82, "no_effect": 0.1},
    "power_without_effect": {"holds": 0.02, "no_effect": 0.6},
    "secondary": [
        {"text": "fewer tokens", "compared": "old - new", "measure": "end tokens", "margin": 2.0, "effect": 1.5, "low": 0.5, "high": 2.5}
        | {"p": 0.02, "p_holm": 0.04, "shown": True}
    ],
}
MEASURED = {"old": {"0": {"auc exact": 0.4}, "1": {"auc exact": 0.5}, "2": {"auc exact": 0.6}}, "new": {"0": {"auc exact": 0.7}}}


def made(path: Path, **changes: Any) -> Path:
    value = {"name": "mine", "state": "all runs are done", "arms": {"old": [], "new": []}, "measured": MEASURED}
    path.mkdir()
    (path / "study.json").write_text(json.dumps(value | {"comparisons": {"new-old": FOUND}} | changes))
    return path


def test_verdict_effect_smallest_effect_and_power_are_said(tmp_path: Path) -> None:
    found = study_doc(made(tmp_path / "a"))
    assert found is not None
    assert (found["name"], found["about"]) == ("mine", "all runs are done")
    assert found["said"] == ["new-old: holds."]
    ((name, measure, verdict, effect, *rest),) = found["tables"][0]["rows"]
    assert (name, measure["small"], verdict["text"], verdict["kind"]) == ("new-old", "new - old", "holds", "better")
    assert (effect["text"], effect["small"], rest) == ("+0.200", "[+0.050, +0.350]", ["0.1", "3", "82%", "60%"])
    premise, further = found["tables"][1]["rows"]
    assert premise[1:4] == ["room to learn", "at most 0.95", "0.970"]
    assert (premise[4]["text"], premise[4]["kind"]) == ("not met", "worse")
    assert (further[2], further[3]["small"], further[4]) == ("old - new above -2", "[+0.500, +2.500] p 0.04 (Holm)", "shown")


def test_arms_stand_over_their_seeds(tmp_path: Path) -> None:
    found = study_doc(made(tmp_path / "a"))
    assert found is not None
    old, new = found["cards"][0]["rows"]
    assert (old["name"], old["text"], old["interval"]) == ("old (3)", "0.500", "[0.252, 0.748]")  # 0.5 -+ 4.303 * 0.1 / sqrt(3)
    assert (new["name"], new["text"], new["interval"]) == ("new (1)", "0.700", "")
    assert over_seeds("", [0.4, 0.6])["note"] == "mean over 2 seeds, too few for an interval"


def test_a_remark_stands_beside_the_verdict(tmp_path: Path) -> None:
    found = study_doc(made(tmp_path / "a", comparisons={"new-old": FOUND | {"remark": "beyond delta"}}))
    assert found is not None
    assert found["said"] == ["new-old: holds (beyond delta)."]


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    nothing = {"effect": None, "low": None, "high": None, "seeds": 0}
    open_ = FOUND | {"verdict": "cannot be told", "power": None, "power_without_effect": None, "primary": PRIMARY | nothing}
    found = study_doc(made(tmp_path / "a", comparisons={"x": open_}, measured={}))
    assert found is not None
    assert [cell if isinstance(cell, str) else cell["text"] for cell in found["tables"][0]["rows"][0][3:]] == ["-", "0.1", "0", "-", "-"]
    assert found["cards"] == []


def test_a_folder_without_a_study_and_a_damaged_one(tmp_path: Path) -> None:
    assert study_doc(tmp_path) is None
    with pytest.raises(StorageError, match="not the results of a study"):
        study_doc(made(tmp_path / "a", comparisons={"x": {"verdict": "holds"}}))
