"""What a folder holds: kinds of things, arms and seeds, states of runs in words, the primary number of each."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from tests.support.made_runs import held_out, make_folder, make_run
from tests.support.pages import make_eval
from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.summary import summarize
from vlmrl.extras.pages.documents.folder import items_of, unique
from vlmrl.extras.pages.documents.source import Forbidden
from vlmrl.extras.pages.view.view import View


def told(*paths: Path, strict: bool = False) -> dict[str, Any]:
    return View(paths, strict=strict).document("folder")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder"))


def test_everything_in_a_folder_is_found(made: Path) -> None:
    found = told(made)
    assert sorted(run["id"] for run in found["runs"]) == ["dots-s0", "dots-s1", "dots-s2", "plain-s0", "plain-s1"]
    others = {one["address"]: one["text"] for one in found["others"]}
    assert list(others) == ["evaluation/after", "evaluation/before", "check/check", "comparison/comparison"]
    assert (others["evaluation/after"], others["check/check"]) == ("after, small v1", "3 good rows, 2 refused")
    assert others["comparison/comparison"].startswith(("no regression", "regressed"))
    assert found["start"] == ""
    view = View([made])
    for address in (*view.addresses(), *view.groups(1), *(f"question/{one}" for one in view.questions()[:3])):
        assert json.dumps(view.document(address))


def test_one_run_opens_itself(made: Path) -> None:
    assert told(made / "runs" / "dots-s0")["start"] == "run/dots-s0"
    assert told(made / "comparison")["start"] == "comparison/comparison"
    assert told(made / "check.html")["start"] == "check/check"


def test_a_finished_run_is_finished_and_names_no_stage_run(tmp_path: Path) -> None:
    """Its last line of metrics is about the whole run, which is no stage of it."""
    make_run(tmp_path / "done", steps=6)
    make_run(tmp_path / "half", steps=6, finished=False)
    runs = {run["id"]: run for run in told(tmp_path)["runs"]}
    assert (runs["done"]["where"], runs["done"]["status"]) == ("finished", "finished")
    assert (runs["half"]["where"], runs["half"]["status"]) == ("RL, step 6 of 6", "stopped")
    for run in runs.values():
        assert not {"run", "?"} & set(run["where"].split())


def test_runs_that_differ_in_their_seed_alone_are_an_arm(made: Path) -> None:
    arms = {name: (seeds, differs) for name, seeds, _, differs in told(made)["arms"]["rows"]}
    assert arms == {
        "dots": ("0, 1, 2", "stages.rl.rewards: exact, brief"),
        "plain": ("10, 11", "stages.rl.rewards: exact"),
    }
    assert told(made / "runs" / "dots-s0")["arms"] is None


def test_the_number_of_an_arm_is_a_mean_with_an_interval_over_seeds(made: Path) -> None:
    found = told(made)
    values = [run["primary"]["mean"] for run in found["runs"] if run["id"].startswith("dots")]
    held = {row[0]: row[2] for row in found["arms"]["rows"]}
    mean, half = statistics.fmean(values), float(stats.t.ppf(0.975, 2)) * statistics.stdev(values) / math.sqrt(3)
    assert held["dots"]["text"] == f"{mean:.3f} accuracy"
    assert held["dots"]["small"] == f"[{mean - half:.3f}, {mean + half:.3f}], mean over 3 seeds, 95% t interval"
    assert held["plain"]["small"] == "mean over 2 seeds, too few for an interval"


def test_the_number_of_a_run_is_that_of_its_newest_evaluation(tmp_path: Path) -> None:
    make_run(tmp_path / "one", evaluated=("base", "sft"))
    primary = told(tmp_path / "one")["runs"][0]["primary"]
    expected = summarize(held_out("sft", 40, 0), 0).metrics["exact"]
    assert (primary["metric"], primary["label"], primary["stage"], primary["n"]) == ("exact", "accuracy", "after SFT", 40)
    assert (primary["mean"], primary["low"], primary["high"]) == (expected.mean, expected.low, expected.high)


def test_a_study_names_its_arms(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path / "elsewhere" / f"r{seed}", seed=seed)
        make_run(tmp_path / "study" / f"q{seed}", seed=seed)
    study = {"arms": {"mine": ["q0", "q1"], "other's": ["../elsewhere/r0", "../elsewhere/r1"]}}
    (tmp_path / "study" / "study.json").write_text(json.dumps(study))
    found = told(tmp_path / "study")
    assert [row[:2] for row in found["arms"]["rows"]] == [["mine", "0, 1"], ["other's", "0, 1"]]
    assert [arm["runs"] for arm in View([tmp_path / "study"]).document("arms")["arms"]] == [2, 2]
    assert (found["study"]["name"], found["study"]["tables"]) == ("study", [])
    (tmp_path / "study" / "study.json").write_text(json.dumps(study | {"comparisons": {"less": {"verdict": "holds"}}}))
    with pytest.raises(StorageError, match="not the results of a study"):
        told(tmp_path / "study")
    for wrong in ("{", '{"arms": [1]}', '{"arms": {"a": 3}}', "{}"):
        (tmp_path / "study" / "study.json").write_text(wrong)
        with pytest.raises(StorageError, match="not a study"):
            told(tmp_path / "study")


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    make_eval(tmp_path / "bad", "m", {}, frames=False)
    (tmp_path / "bad" / "summary.json").write_text("{")
    found = told(tmp_path)
    assert [run["id"] for run in found["runs"]] == ["one"]
    assert "not JSON" in found["others"][0]["problem"]
    with pytest.raises(StorageError, match="not JSON"):
        told(tmp_path, strict=True)


def test_a_run_with_a_link_to_elsewhere_is_not_read_and_others_are(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "runs" / "one"), make_run(tmp_path / "runs" / "two")
    (two / "metrics.jsonl").rename(tmp_path / "outside")
    (two / "metrics.jsonl").symlink_to(tmp_path / "outside")
    view = View([tmp_path / "runs"])
    found = view.document("folder")
    assert [run["id"] for run in found["runs"]] == ["one"]
    assert found["problems"] == ["two: a file in it is a link to elsewhere, so it is not read"]
    with pytest.raises(Forbidden, match="two: a file in it is a link to elsewhere"):
        view.document("run/two")
    assert view.document("run/one")["name"] == one.name


@pytest.mark.parametrize("what", ["nothing", "a file"])
def test_where_there_is_nothing_to_look_at_that_is_said(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    with pytest.raises(ConfigError, match="no such folder"):
        items_of([path])
    if what == "a file":
        path.write_text("x")
    else:
        path.mkdir()
    with pytest.raises(ConfigError, match="nothing to look at"):
        items_of([path])


def test_names_in_addresses_are_different_and_plain() -> None:
    names = ["a b/../c", "a b/../d", "run", "run", "é", "", "x" * 100]
    found = unique(names)
    assert len(set(found)) == len(names)
    assert all(name and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_") and len(name) <= 63 for name in found)
