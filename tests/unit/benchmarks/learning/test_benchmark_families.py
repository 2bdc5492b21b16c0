"""The page of the families: what is kept, what is not and with which number, what was not tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import families


def report(name: str, value: float) -> dict[str, Any]:
    checks = [
        {
            "promise": "P6",
            "case": "image",
            "what": "log-probs",
            "value": value,
            "limit": 1e-9,
            "control": False,
            "note": "",
            "ok": value < 1e-9,
        },
        {"promise": "P8", "case": "image", "what": "control", "value": 1.5, "limit": 1e-7, "control": True, "note": "", "ok": True},
        {"promise": "P1", "case": "image", "what": "ids", "value": 0.0, "limit": 0.0, "control": False, "note": "", "ok": True},
    ]
    kept = {key: {"kept": key != "P6" or value < 1e-9} for key in families.COLUMNS}
    layouts = ["repeat"] if value < 1e-9 else []
    return {"name": name, "versions": families.versions(), "layouts": layouts, "promises": kept, "checks": checks}


def test_a_family_that_fails_is_listed_with_its_number() -> None:
    page = families.rendered([report("good", 2e-15), report("bad", 0.25)], {"smolvlm": "needs num2words"})
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in page.splitlines() if line.startswith("| ")}
    places = {key: 1 + families.COLUMNS.index(key) for key in ("P1", "P6", "P8")}
    assert [rows["good"][at] for at in places.values()] == ["yes", "2e-15", "-"], "a control is no number of ours"
    assert [rows["bad"][at] for at in places.values()] == ["yes", "**no**", "-"]
    assert rows["bad"][-1] == "none |"
    assert "* bad: P6 image, log-probs: 0.25 (limit 1e-09)" in page
    assert "* smolvlm: needs num2words" in page
    assert f"transformers {families.versions()['transformers']}" in page


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def tried(name: str, before: Any) -> dict[str, Any]:
        asked.append(name if before is None else f"{name} again")
        return report(name, 0.0)

    monkeypatch.setattr(families, "tried", tried)
    page = tmp_path / "families.md"
    families.main(["--only", "gemma3", "--write", str(page)])
    families.main(["--only", "gemma3,lfm2_vl", "--write", str(page)])
    assert asked == ["gemma3", "lfm2_vl"]
    old = json.loads(page.with_suffix(".json").read_text())
    del old["gemma3"]["promises"]["P17"]
    page.with_suffix(".json").write_text(json.dumps(old))
    families.main(["--only", "gemma3,lfm2_vl", "--write", str(page)])
    assert asked == ["gemma3", "lfm2_vl", "gemma3 again"], "a promise that is newer than the report"
    old = json.loads(page.with_suffix(".json").read_text())
    old["gemma3"]["versions"]["torch"] = "1.0"
    page.with_suffix(".json").write_text(json.dumps(old))
    families.main(["--only", "gemma3", "--write", str(page)])
    assert asked[3:] == ["gemma3"], "another version is tried anew"
    assert "None of those that ran." in page.read_text()
    [left] = [line for line in page.read_text().splitlines() if line.startswith("With these versions: ")]
    assert "qwen2_vl, " in left
    assert "gemma3" not in left
