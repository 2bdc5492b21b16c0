"""Keeping finished cells, refusing unlike ones, slopes: what the benchmark scripts share."""

from __future__ import annotations

import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import common
from tests.support import measured

NAMED = re.compile(r"python -m (benchmarks\.[a-z_.]*[a-z_])")
CELL = {"prompt": 64, "group": 2}


def test_fit_by_hand():
    # slope 1.5 and intercept 2/3 by the normal equations; residuals 1/6, -1/3, 1/6
    line = common.fit([0, 1, 2], [0.5, 2.5, 3.5])
    assert (line.slope, line.intercept) == pytest.approx((1.5, 2 / 3))
    assert line.r2 == pytest.approx(1 - (1 / 36 + 1 / 9 + 1 / 36) / (14 / 3))
    # t(0.975, 1) = 12.706; standard error sqrt((1/6) / 1 / 2)
    assert line.high - line.slope == pytest.approx(12.7062 * (1 / 12) ** 0.5, rel=1e-4)


@given(slope=st.floats(-5, 5), start=st.floats(-5, 5))
def test_fit_finds_a_line(slope, start):
    line = common.fit([1, 2, 5, 5], [start + slope * x for x in (1, 2, 5, 5)])
    assert (line.slope, line.intercept) == pytest.approx((slope, start), abs=1e-9)


def test_two_points_have_no_interval():
    line = common.fit([1, 3], [0, 4])
    assert (line.slope, line.r2, line.high) == (2, 1, float("inf"))


def test_a_slope_needs_two_places():
    with pytest.raises(ValueError, match="two different x"):
        common.fit([2, 2], [1, 3])


def test_median_range():
    assert common.median_range([3.0, 1.0, 2.25]) == "2.25 (1.00..3.00)"
    assert common.median_range([]) == "-"


def runs(monkeypatch, tmp_path, sides, repeats, rounds=False, cells=(CELL,)):
    """Keys in the order in which they are measured."""
    order: list[tuple[str, int]] = []

    def measure(script, job, *, timeout, python):
        order.append((job["side"], job["cell"]["group"]))
        return {"seconds": [1.0]}

    monkeypatch.setattr(common, "measure", measure)
    store = common.Store.open(tmp_path / "x.json", {"device": "cpu"})
    common.run_all("x.py", store, cells, sides, repeats, timeout=1, say=lambda line: None, rounds=rounds)
    return order


def test_sides_take_turns_and_finished_cells_are_kept(monkeypatch, tmp_path):
    assert runs(monkeypatch, tmp_path, ["a", "b"], 2) == [("a", 2), ("b", 2)] * 2
    assert runs(monkeypatch, tmp_path, ["a", "b"], 2) == []
    assert runs(monkeypatch, tmp_path, ["a", "b"], 3) == [("a", 2), ("b", 2)]


def test_a_side_has_a_python_of_its_own(monkeypatch, tmp_path):
    pythons: list[str] = []
    monkeypatch.setattr(common, "measure", lambda script, job, *, timeout, python: pythons.append(python) or {"seconds": [1.0]})
    store = common.Store.open(tmp_path / "x.json", {"device": "cpu"})
    common.run_all("x.py", store, [CELL], ["a", "b"], 1, timeout=1, say=lambda line: None, pythons={"b": "other"})
    assert pythons == [sys.executable, "other"]


def test_another_environment_has_its_versions_and_no_place(monkeypatch, tmp_path):
    program = str(common.ROOT / "benchmarks" / "step" / "vs_trl.py")
    monkeypatch.setattr(sys, "argv", [program, "--swift-python", "/there/python", "--all"])
    store = common.Store(tmp_path / "x.json", {})
    of = {"revision": "abc", "load": {"before": 1.0}}
    store.results = {side: {"side": side, "versions": {"trl": version}} | of for side, version in (("a", "1.0"), ("b", "0.9"))}
    lines = [line for line in common.provenance(store, apart=["b", "c"]) if "versions" in line]
    assert common.command_line() == "python -m benchmarks.step.vs_trl --all"
    assert lines == ["* versions: trl 1.0; this repository at abc", "* versions of b: trl 0.9"]
    assert "* versions: trl 0.9/1.0; this repository at abc" in common.provenance(store)


def test_rounds_go_over_all_cells_before_they_repeat(monkeypatch, tmp_path):
    cells = [CELL, CELL | {"group": 4}]
    assert runs(monkeypatch, tmp_path, ["a"], 2, rounds=True, cells=cells) == [("a", 2), ("a", 4), ("a", 2), ("a", 4)]


def test_cells_of_other_settings_are_refused(monkeypatch, tmp_path):
    runs(monkeypatch, tmp_path, ["a"], 1)
    with pytest.raises(common.BenchmarkError, match="other settings"):
        common.Store.open(tmp_path / "x.json", {"device": "cuda"})


def test_cells_of_another_machine_are_refused(monkeypatch, tmp_path):
    runs(monkeypatch, tmp_path, ["a"], 1)
    held = json.loads((tmp_path / "x.json").read_text())
    held["machine"]["cores"] = -1
    (tmp_path / "x.json").write_text(json.dumps(held))
    with pytest.raises(common.BenchmarkError, match="other machine"):
        common.Store.open(tmp_path / "x.json", {"device": "cpu"})


def test_unlike_work_is_no_comparison(tmp_path):
    store = common.Store(tmp_path / "x.json", {})
    store.results = {"1": {"side": "a", "cell": CELL, "tokens": 5}, "2": {"side": "b", "cell": CELL, "tokens": 6}}
    with pytest.raises(common.BenchmarkError, match="differ in tokens"):
        common.check_same(store, CELL, ["tokens"])
    store.results["2"]["tokens"] = 5
    common.check_same(store, CELL, ["tokens"])
    for without in ({"failed": "out of memory"}, {"seconds": [1.0]}):
        store.results["2"] = {"side": "b", "cell": CELL} | without
        common.check_same(store, CELL, ["tokens"])


def test_measuring_in_a_process():
    def go(side, timeout=60.0):
        return common.measure(measured.__file__, {"side": side, "cell": CELL, "settings": {}}, timeout=timeout)

    assert go("good") == {"seconds": [2]}
    assert "memory" in go("killed")["failed"]
    assert go("slow", 0.5) == {"failed": "over 0 s"}
    with pytest.raises(common.BenchmarkError, match="no such thing"):
        go("fails")


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(common.INSTALL, "no_such_package", "pip install it")
    with pytest.raises(common.BenchmarkError, match=r"pip install it.*without it: --sides a"):
        common.need("no_such_package", "--sides a")


def test_a_list_of_numbers_is_one_line_of_the_file():
    content = {"a": {"seconds": [0.5, -1e-05, 3], "names": ["x [1, 2]", "y"], "none": []}, "b": [[1, 2], [3]]}
    text = common._text(content)
    assert json.loads(text) == content
    assert '"seconds": [0.5, -1e-05, 3]' in text
    assert len(text.splitlines()) == 14


def test_commands_in_texts_are_those_of_programs():
    """Pages and descriptions name programs that exist, and every program is named."""
    files = (common.ROOT / "benchmarks").rglob("*.py")
    programs = {common.module_of(str(path)).removesuffix(".__main__") for path in files if "\nif __name__ ==" in path.read_text("utf-8")}
    texts = [common.ROOT / "README.md", *(common.ROOT / "docs").rglob("*.md"), *(common.ROOT / "benchmarks").rglob("*.*")]
    named = {name for path in texts if path.suffix in (".md", ".py", ".sh") for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert named - programs == set()
    assert {name for name in programs - named if ".gpu_check." not in name} == set()
