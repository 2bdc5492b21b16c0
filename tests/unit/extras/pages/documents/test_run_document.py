"""The document of a run: the primary number at every stage, cards of what moved, parts of the reward, next steps, tables."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_runs import held_out, make_run
from tests.support.pages import good, poor
from tests.support.pages import make_run as make_evaluated
from vlmrl.errors import StorageError
from vlmrl.evals.score.paired import compare
from vlmrl.evals.score.summary import Interval
from vlmrl.extras.pages.documents.shapes import estimate, gap_cell, mean_cell, stage_words, when
from vlmrl.extras.pages.view.view import View


def told(path: Path, *, strict: bool = True) -> dict[str, Any]:
    return View([path], strict=strict).document(f"run/{path.name}")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return told(make_run(tmp_path_factory.mktemp("runs") / "dots"))


def test_the_primary_number_stands_at_every_stage_with_its_interval(found: dict[str, Any]) -> None:
    stages = found["cards"][0]["rows"]
    assert [(stage["name"], stage["text"]) for stage in stages] == [
        ("before training", "1.000"),
        ("after SFT", "0.650"),
        ("after RL", "0.975"),
    ]
    assert stages[1]["interval"] == f"[{stages[1]['low']:.3f}, {stages[1]['high']:.3f}]"


def test_a_card_for_each_thing_that_moved_and_one_line_for_the_rest(found: dict[str, Any]) -> None:
    assert [card["title"] for card in found["cards"]] == [
        *("Accuracy on 40 held-out questions", "Parts of the reward", "Thoughts", "Length")
    ]
    assert any(text.startswith("readable") for text in found["unmoved"])


def test_the_parts_of_the_reward_stand_beside_their_sum(found: dict[str, Any]) -> None:
    rows = found["cards"][1]["rows"]
    assert [part["name"] for part in rows] == ["sum", "brief", "exact"]
    assert all(part["interval"] == f"from {part['low']:.3f}" and part["mean"] == part["high"] > part["low"] for part in rows)


def test_a_part_of_the_reward_has_its_weight_and_may_fall(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", rewards=("exact",), steps=2)
    (run / "config.yaml").write_text(json.dumps({"stages": [{"name": "rl", "rewards": [{"name": "exact", "weight": 0.5}]}]}))
    lines = [{"stage": "rl", "global_step": n, "reward": 2.0 - n, "rewards/exact/mean": 4.0 - 2 * n} for n in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = next(card["rows"] for card in told(run)["cards"] if card["title"] == "Parts of the reward")
    assert [(part["name"], part["text"], part["interval"]) for part in rows] == [
        ("sum", "0.000", "from 1.000"),
        ("exact × 0.5", "0.000", "from 2.000"),
    ]
    assert (rows[1]["low"], rows[1]["mean"], rows[1]["high"]) == (0.0, 0.0, 2.0)


def test_what_to_do_next_goes_by_what_the_run_shows(found: dict[str, Any], tmp_path: Path) -> None:
    words = " ".join(one["text"] for one in found["next"])
    assert "90% of the groups had answers of equal reward" in words
    assert "One run with seed 0" in words
    assert "cut off" not in words
    assert [one["where"] for one in found["next"] if one["where"]] == ["score.rl < score.sft"]
    stopped = told(make_run(tmp_path / "half", finished=False, evaluated=()))
    assert stopped["next"][0]["text"].startswith("The run stopped at RL, step 12 of 12.")
    assert ([card["title"] for card in stopped["cards"]], stopped["about"]) == (["Parts of the reward"], "RL, step 12 of 12")
    assert stopped["said"][0] == "No held-out evaluation yet: RL, step 12 of 12."
    assert "eval.source" in stopped["said"][1]


def test_the_tables_are_there(found: dict[str, Any]) -> None:
    assert [one["title"] for one in found["tables"]] == [
        *("Held-out questions", "By how hard questions are", "Differences", "Where the time went")
    ]
    assert dict(found["facts"])["torch"] == "2"
    assert "run:" in found["config"]


def test_stages_on_other_questions_are_not_compared(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    (run / "eval" / "rl.jsonl").write_bytes(b"".join(r.line() for r in held_out("rl", 30, 0)))
    shown = told(run)
    assert "sft and rl cannot be compared: only the first has answers on 10 samples" in shown["warnings"][0]
    differences = next(one for one in shown["tables"] if one["title"] == "Differences")
    assert [row[0] for row in differences["rows"]] == ["before training → after SFT"]


def test_pictures_are_reported_by_what_applies_to_them(tmp_path: Path) -> None:
    shown = told(make_evaluated(tmp_path / "run", {"base": poor(), "rl": good()}))
    assert shown["cards"][0]["title"].startswith("Score on 9"), "several types of answers"
    header = shown["tables"][0]["header"]
    assert {"box IoU", "tokens"} <= set(header)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n{}")
    with pytest.raises(StorageError, match=r"metrics\.jsonl:\d+: not JSON"):
        told(run)
    assert "not JSON" in told(run, strict=False)["warnings"][0], "live, the rest is shown"
    (run / "eval" / "order.json").write_text("[")
    with pytest.raises(StorageError, match=r"order\.json: not a list of stages"):
        told(run)


def test_words_of_stages() -> None:
    assert [when(name) for name in ("base", "sft", "rl@40", "rl", "warm_up")] == [
        *("before training", "after SFT", "at step 40 of RL", "after RL", "after warm_up")
    ]
    assert stage_words("GRPO") == "RL"


def test_an_interval_without_width_is_none(tmp_path: Path) -> None:
    unknown = estimate("exact", Interval(mean=1.0, low=None, high=None, why="no interval: 4 clusters"))
    assert (unknown["text"], unknown["interval"], unknown["why"]) == ("1.000", "", "no interval: 4 clusters")
    assert mean_cell("exact", Interval(mean=1.0, low=None, high=None, why="all equal"))["small"] == "(all equal)"
    assert estimate("exact", None)["text"] == "-"


def test_only_differences_that_are_beyond_doubt_are_good_or_bad_news() -> None:
    before, after = held_out("sft", 40, 0), held_out("rl", 40, 0)
    gaps = compare(before, after, 0).gaps
    assert gap_cell("exact", gaps["exact"])["kind"] == "better"
    assert gap_cell("tokens", gaps["tokens"])["kind"] == "worse"
    same = compare(before, before, 0).gaps["exact"]
    assert gap_cell("exact", same)["text"] == "same"
    open_ = dataclasses.replace(gaps["exact"], low=-0.1, high=0.5)
    assert gap_cell("exact", open_)["kind"] is None
    few = dataclasses.replace(gaps["exact"], low=None, high=None, p=0.25, why="no interval: 4 clusters")
    assert (gap_cell("exact", few)["small"], gap_cell("exact", few)["kind"]) == ("(no interval: 4 clusters) p 0.250", None)


def test_a_copy_is_the_same_whenever_it_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    assert json.dumps(told(run)) == json.dumps(told(run))
    views = [View([run], strict=strict).document("folder") for strict in (True, False)]
    assert views[0] == views[1]
    assert views[0]["runs"][0]["wall"] == 1_700_000_000.0 + 3 * 17
