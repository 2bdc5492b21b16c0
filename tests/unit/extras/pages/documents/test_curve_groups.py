"""Groups of curves: which are chosen, their words, what a step is measured in, long curves, phases, and bands over seeds."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.made_runs import make_run
from vlmrl.extras.pages.documents.curves import (
    POINTS,
    band,
    chosen,
    curves_doc,
    matching,
    metrics_doc,
    phase_series,
    spoken,
)
from vlmrl.extras.pages.documents.source import Source


def source(folder: Path, lines: list[dict[str, Any]], name: str = "a", **stage: Any) -> Source:
    """A run with these lines of metrics."""
    path = folder / name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(json.dumps({"stages": [{"name": "rl", **stage}]}))
    (path / "metrics.jsonl").write_text("".join(json.dumps({"stage": "rl"} | line) + "\n" for line in lines))
    found = Source(path, name, "run")
    found.follow()
    return found


def line(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, "global_step": step, **values}


def phases(step: int, total: float, **seconds: float) -> dict[str, Any]:
    return line(step, **{"time/step_total": total}, **{f"time/{name}": s for name, s in seconds.items()})


def test_the_parts_of_the_reward_thoughts_and_length_are_chosen_and_constants_of_evaluations_are_not(tmp_path: Path) -> None:
    """Two hundred metrics of evaluations stand before everything else by their names, and push nothing out."""
    many = {f"eval/consistency/difficulty={n}": 1.0 for n in range(200)}
    own = {
        "reward": 1.5,
        "rewards/exact/mean": 1.0,
        "rewards/brief/mean": 0.5,
        "completions/think_rate": 0.2,
        "completions/mean_length": 9.0,
    }
    run = source(tmp_path, [line(n, **many, **own, **{"eval/score": 0.5}) for n in (1, 2)])
    groups = {group["title"]: [series["name"] for series in group["series"]] for group in curves_doc([run])["groups"]}
    assert groups == {
        "Held-out questions": ["score"],
        "Reward": ["sum", "brief", "exact"],
        "Form of the answers": ["with thought"],
        "Length": ["tokens"],
    }
    everything = {series["key"] for group in metrics_doc(run)["groups"] for series in group["series"]}
    assert everything == {*many, *own, "eval/score"}, "all others can be reached"


def test_the_gap_to_a_teacher_has_a_line_for_each_kind_of_media(tmp_path: Path) -> None:
    gap = {"distill/gap": 0.3, "distill/gap/video": 0.2, "distill/gap/image": 0.4, "distill/task_gap/count": 0.3}
    groups = curves_doc([source(tmp_path, [line(n, **gap) for n in (1, 2)])])["groups"]
    assert [(group["title"], [series["name"] for series in group["series"]]) for group in groups] == [
        ("Gap to the teacher", ["image", "video"])
    ]


def test_a_step_is_counted_in_answers_and_seconds_too(tmp_path: Path) -> None:
    run = Source(make_run(tmp_path / "one", steps=3), "one", "run")
    run.follow()
    found = curves_doc([run])
    reward = next(group for group in found["groups"] if group["title"] == "Reward")["series"][0]
    x = found["xs"][reward["x"]]
    assert x["step"] == [6, 7, 8]
    assert x["samples"] == [5 * 16 + 64, 5 * 16 + 128, 5 * 16 + 192], "five steps of SFT with 16 rows, then 64 answers each"
    assert x["seconds"] == [18.0, 21.0, 24.0]
    assert [(stage["words"], stage["from"], stage["to"]) for stage in found["stages"]] == [("SFT", 1, 5), ("RL", 6, 8)]


def test_a_step_is_no_number_of_answers_where_the_recipe_does_not_say(tmp_path: Path) -> None:
    x = curves_doc([source(tmp_path, [line(1, reward=0.5), line(2, reward=0.7)])])["xs"][0]
    assert (x["samples"], x["seconds"]) == (None, None)


def test_what_is_not_finite_is_left_out_and_the_end_of_a_run_is_no_step(tmp_path: Path) -> None:
    lines = [line(1, loss=1.0), line(2, loss="NaN"), line(3, loss=2.0), {"stage": "run", "step": 3, "global_step": 3, "loss": 9.0}]
    run = source(tmp_path, lines)
    assert run.metrics.columns["loss"] == {1: 1.0, 3: 2.0}
    assert run.metrics.stages == {"rl": (1, 3)}


def test_a_run_that_goes_on_from_an_earlier_step_has_no_values_of_the_steps_it_lost(tmp_path: Path) -> None:
    run = source(tmp_path, [line(n, loss=float(n)) for n in range(1, 6)])
    assert max(run.metrics.columns["loss"]) == 5
    text = (run.path / "metrics.jsonl").read_text()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": "rl"} | line(6, loss=0.5)) + "\n")
    assert (len(run.lines), run.metrics.columns["loss"][6]) == (6, 0.5)
    (run.path / "metrics.jsonl").write_text("".join(text.splitlines(keepends=True)[:2]))
    assert (len(run.lines), run.metrics.columns["loss"], run.metrics.stages) == (2, {1: 1.0, 2: 2.0}, {"rl": (1, 2)})


def test_evaluations_are_one_line_and_a_score_that_repeats_another_is_left_out(tmp_path: Path) -> None:
    lines = [line(n, **{"eval/miou": v, "eval/score": v, "eval/parse_rate": 1.0, "eval/r1@0.5": 0.1}) for n, v in ((0, 0.2), (10, 0.4))]
    assert {title: list(series) for title, (_, series) in chosen(source(tmp_path, lines)).items()} == {
        "Held-out questions": ["eval/miou", "eval/parse_rate"]
    }
    assert chosen(source(tmp_path, lines[:1], "b")) == {}


@given(st.dictionaries(st.integers(0, 10_000), st.floats(-1e6, 1e6), min_size=1, max_size=900), st.integers(1, 500))
def test_long_curves_are_means_of_stretches(points: dict[int, float], most: int) -> None:
    steps, curve = band([points], most)
    values = curve["y"]
    assert len(steps) <= most
    assert steps == sorted(set(steps))
    assert steps[-1] == max(points)
    if len(points) <= most:
        assert dict(zip(steps, values, strict=True)) == {step: float(f"{value:.6g}") for step, value in points.items()}
    assert all(min(points.values()) - 1e-3 * abs(min(points.values())) <= v for v in values if v is not None)


def test_a_long_curve_by_hand() -> None:
    steps, curve = band([{n: float(n) for n in range(1000)}])
    assert (len(steps), steps[0], curve["y"][0], steps[-1], curve["y"][-1]) == (334, 2, 1.0, 999, 999.0)
    assert band([{1: math.inf}])[1]["y"] == [None]
    assert len(band([{n: 0.5 for n in range(3 * POINTS)}])[0]) == POINTS


def test_names_of_a_group() -> None:
    names = ["rewards/b/mean", "rewards/a/mean", "rewards/a/std", "reward", "reward_std"]
    assert matching(names, ("reward", "rewards/*/mean")) == ["reward", "rewards/a/mean", "rewards/b/mean"]


def test_legends_say_metrics_in_words() -> None:
    names = {
        "reward": "sum",
        "rewards/temporal_iou/mean": "temporal iou",
        "filter/zero_std": "left out by zero std",
        "completions/think_rate": "with thought",
        "completions/think_rate/difficulty=easy": "easy",
        "eval/toy_desk/macro": "toy desk",
        "time/forward_backward": "forward backward",
    }
    assert {name: spoken(name) for name in names} == names


def test_phases_of_a_step_by_hand(tmp_path: Path) -> None:
    lines = [phases(1, 4.0, rollout=2.0, score=0.5) | {"time/to_first_rl_step": 9.0}, phases(2, 3.0, rollout=3.5)]
    whole = {"stage": "run", **phases(2, 60.0, evaluate=20.0)}
    assert phase_series(source(tmp_path, [*lines, whole])) == {
        "time/step_total": {1: 4.0, 2: 3.0},
        "time/rollout": {1: 2.0, 2: 3.5},
        "time/score": {1: 0.5},
    }


def test_of_many_phases_the_longest_are_drawn(tmp_path: Path) -> None:
    seconds = {f"p{n}": float(10 - n) for n in range(8)}
    series = phase_series(source(tmp_path, [phases(1, 60.0, **seconds)]))
    assert list(series) == ["time/step_total", *(f"time/p{n}" for n in range(5))]


def test_a_band_is_a_mean_and_a_standard_deviation_over_seeds(tmp_path: Path) -> None:
    values = {"a": [0.1, 0.3], "b": [0.3, 0.9], "c": [0.5, 0.6]}
    runs = [source(tmp_path, [line(n + 1, reward=v) for n, v in enumerate(own)], name) for name, own in values.items()]
    steps, found = band([run.metrics.columns["reward"] for run in runs])
    assert (found["n"], steps) == (3, [1, 2])
    for at in (0, 1):
        own = [values[name][at] for name in values]
        mean, spread = statistics.fmean(own), statistics.stdev(own)
        assert [found[key][at] for key in ("y", "low", "high")] == pytest.approx([mean, mean - spread, mean + spread], abs=1e-5)


def test_one_run_has_no_band_and_several_stand_at_the_steps_that_all_have(tmp_path: Path) -> None:
    one, two = (source(tmp_path, [line(n, reward=0.5) for n in range(1, steps)], name) for name, steps in (("a", 4), ("b", 3)))
    for runs, n, steps in (([one, two], 2, [1, 2]), ([one], 1, [1, 2, 3])):
        found = curves_doc(runs)
        ((series,),) = (group["series"] for group in found["groups"])
        assert (series["n"], found["xs"][series["x"]]["step"], series["low"] is None) == (n, steps, n == 1)
    assert band([{1: 0.5, 2: 0.5}, {3: 1.0}])[0] == [1, 2], "of runs without a step in common the first"
