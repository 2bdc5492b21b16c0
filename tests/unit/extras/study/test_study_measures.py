"""From a run's folder to its measures: numbers by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.evals.test_evals_compare import choice
from vlmrl.errors import ConfigError
from vlmrl.extras.study.measures import Measured, bands, measured, own_measures, require, resolution_of, unknown_measures


def make_run(path: Path, evaluations: dict[str, list[float]], *, stages=(("sft", 3), ("rl", 10))) -> Path:
    (path / "eval").mkdir(parents=True)
    config = {"run": {"seed": 0}, "stages": [{"name": name, "kind": "grpo", "steps": steps} for name, steps in stages]}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "eval/order.json").write_text(json.dumps(list(evaluations)))
    for name, values in evaluations.items():
        half = len(values) // 2
        records = [*choice(values[:half], category="easy"), *choice(values[half:], category="hard", n_out=7)]
        for n, record in enumerate(records):
            object.__setattr__(record, "sample_id", f"q{n}")
        (path / f"eval/{name}.jsonl").write_bytes(b"".join(record.line() for record in records))
    lines = [{"stage": "sft", "step": n + 1, "loss": 9.0} for n in range(3)]
    lines += [{"stage": "rl", "step": n + 1, "reward": float(n), "wall": 5.0} for n in range(9)]
    lines += [{"stage": "run", "step": 13, "global_step": 13}]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_run_by_hand(tmp_path: Path) -> None:
    zero, half, most = [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]
    run = make_run(tmp_path / "run", {"base": most, "sft": zero, "rl@5": half, "rl": most})
    found = measured(run, [lambda path: {"own": float(path == run)}])
    values = found.values
    assert (values["start exact"], values["end exact"]) == (0, 0.75), "the start is that of the last stage"
    # the stage logged nine steps: heights 0, 0.5 at 5, 0.75 at 9
    assert values["auc exact"] == pytest.approx((5 * 0.25 + 4 * 0.625) / 9)
    assert (values["end exact of easy"], values["end exact of hard"], values["end exact in quiz of hard"]) == (1, 0.5, 0.5)
    assert values["end tokens of hard"] == 7
    assert (values["mean reward"], values["first reward"], values["last reward"]) == (4, 1, 7)
    assert values["own"] == 1
    gap = "end exact of easy minus end exact of hard"
    assert measured(run, named=[gap, "end exact minus end nothing"]).values.items() - values.items() == {(gap, 0.5)}
    assert "mean loss" not in values
    assert found.questions == 4
    assert found.curves["eval/exact"] == {3: 0, 8: 0.5, 12: 0.75}
    assert found.curves["loss"] == {1: 9, 2: 9, 3: 9}
    assert found.curves["reward"][4] == 0


def test_a_run_with_one_evaluation_has_no_curve(tmp_path: Path) -> None:
    values = measured(make_run(tmp_path / "run", {"rl": [1.0, 0.0]})).values
    assert values["end exact"] == 0.5
    assert "start exact" not in values
    values = measured(make_run(tmp_path / "late", {"rl@5": [1.0, 0.0], "rl": [1.0, 1.0]})).values
    assert (values["end exact"], values["auc exact"]) == (1, 0.75)
    assert "start exact" not in values, "it was first evaluated in its middle"
    with pytest.raises(ConfigError, match="no held-out evaluation"):
        measured(make_run(tmp_path / "none", {}))
    with pytest.raises(ConfigError, match="measure 'x' is nan"):
        measured(tmp_path / "run", [lambda path: {"x": float("nan")}])


def test_bands_by_hand() -> None:
    runs = [Measured(values={}, questions=1, curves={"a": curve}) for curve in ({0: 0.0, 5: 1.0}, {0: 0.0, 5: 3.0, 9: 4.0})]
    band = bands(runs)["a"]
    assert (band["x"], band["mean"]) == ([0, 5, 9], [0, 2, 4])
    # two values: t(0.975, 1) = 12.7062, sd sqrt(2), so 12.7062 on each side
    assert band["high"][1] == pytest.approx(2 + 12.7062, abs=1e-3)
    assert (band["low"][0], band["low"][2]) == (0, None)
    long = Measured(values={}, questions=1, curves={"a": dict.fromkeys(range(1000), 1.0)})
    assert len(bands([long])["a"]["x"]) == 200


def test_one_answer_moves_means_over_answers_and_nothing_else() -> None:
    resolution = resolution_of(50)
    assert resolution("auc exact of hard") == 1 / 50
    assert resolution("end tokens") == resolution("mean reward") == resolution("own") == resolution_of(0)("end exact") == 0


def test_what_no_run_has_is_told_with_what_is_nearest() -> None:
    runs = {"a": {0: {"end exact": 1.0, "auc exact": 1.0}}}
    require(["end exact"], runs)
    with pytest.raises(ConfigError, match="no run has the measure 'end exat'; did you mean 'end exact'"):
        require(["end exat"], runs)


def test_both_sides_of_a_difference_are_held_against_what_there_is() -> None:
    assert unknown_measures(["end exact of easy minus end exact of hard"]) == []
    problem = "measure 'end exat': no metric 'exat'; did you mean 'exact'? (vlmrl eval shows them)"
    assert unknown_measures(["end exact minus end exat"]) == [problem]


def test_own_measures_are_found_by_their_place() -> None:
    (function,) = own_measures(["vlmrl.fs:length"])
    assert function.__name__ == "length"
    for place, said in (
        ("vlmrl.fs", "expected module:function"),
        ("vlmrl.fs:lenght", "no function 'lenght'"),
        ("no_such:f", "cannot import"),
    ):
        with pytest.raises(ConfigError, match=said):
            own_measures([place])
