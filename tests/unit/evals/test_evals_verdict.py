"""The sentences that say what the last stage changed: by hand, and no surer than the intervals are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.unit.evals.test_evals_levels import STAGES, ask, make_run, stage, without
from vlmrl.evals.score.paired import compare
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import difference_text, interval_text
from vlmrl.evals.score.verdict import verdict
from vlmrl.extras.pages.view.view import View


def test_the_hardest_and_the_easiest_questions_before_and_after_the_last_stage() -> None:
    hard, easy = verdict(STAGES, 3)
    gap = compare(STAGES["sft"], STAGES["rl"], 3).parts["category=hard"].gaps["score"]
    means = [interval_text("score", summarize(STAGES[name], 3).parts["category=hard"].metrics["score"]) for name in ("sft", "rl")]
    assert means[0].startswith("0.250 [0.")
    assert hard == (
        f"On hard questions accuracy went from {means[0]} after sft to {means[1]} after rl ({difference_text('score', gap)}), "
        "and the model thinks on 100% of them (25% before)."
    )
    assert easy == "On easy questions it thinks on 0% (17% before) and accuracy is 1.000 (1.000 before)."
    assert verdict(STAGES, 3, {("sft", "rl"): compare(STAGES["sft"], STAGES["rl"], 3)}) == [hard, easy]


def test_a_difference_whose_interval_contains_nothing_is_not_decided() -> None:
    hard, easy = verdict({"base": stage("base", (3, 2, 2, 3, 3), (0,) * 5), "rl": stage("rl", (2, 2, 2, 3, 4), (0,) * 5)}, 0)
    assert "On hard questions accuracy was 0.500 [" in hard
    assert "] before training and is 0.583 [" in hard
    assert "after rl, a difference that is not decided (+0.083 [-0.179, +0.354])" in hard
    assert "accuracy is 0.333 (0.500 before: -0.167 [-0.564, +0.289], which is not decided)" in easy


def test_what_got_worse_is_said_to_be_worse() -> None:
    hard, easy = verdict({"sft": stage("sft", (6, 6, 6, 6, 6), (0,) * 5), "rl": stage("rl", (1, 6, 6, 1, 1), (0,) * 5)}, 0)
    assert "accuracy fell from 1.000 [0.758, 1.000] after sft to 0.167 [" in hard
    assert "(-0.833 [-0.953, -0.389])" in hard
    assert "accuracy is 0.167 (1.000 before: -0.833 [-0.970, -0.118], which is worse)" in easy


def test_what_is_the_same_is_said_to_be_the_same() -> None:
    same = stage("rl", (6, 1, 1, 2, 2), (0, 0, 0, 6, 6))
    hard, easy = verdict({"sft": stage("sft", (6, 1, 1, 2, 2), (0,) * 5), "rl": same}, 0)
    assert hard.startswith("On hard questions accuracy is unchanged: 0.333 [")
    assert hard.endswith("after sft and after rl, and the model thinks on 100% of them (0% before).")
    assert easy.endswith("accuracy is 1.000 (1.000 before).")


def test_almost_all_is_not_all() -> None:
    before = stage("sft", (250, 0, 0, 0, 0), (0, 0, 0, 0, 0), per_level=250)
    after = stage("rl", (250, 0, 0, 0, 0), (1, 0, 0, 249, 250), per_level=250)
    shifted = [[dataclasses.replace(r, sample_id=f"{r.difficulty}/{r.sample_id}") for r in rows] for rows in (before, after)]
    hard, easy = verdict({"sft": shifted[0], "rl": shifted[1]}, 0)
    assert "thinks on more than 99% of them (0% before)" in hard
    assert "it thinks on less than 1% (0% before)" in easy


def test_without_categories_difficulties_speak() -> None:
    hard, easy = verdict({name: without(rows, "category") for name, rows in STAGES.items()}, 0)
    assert hard.startswith("On questions of difficulty 10 accuracy went from 0.167 [")
    assert easy.startswith("On questions of difficulty 0 it thinks on 0%")


def test_a_level_of_a_few_questions_is_not_spoken_of() -> None:
    """Three of 240 questions were the hardest of a walk, and `unchanged` was the first thing that was said of it."""
    plain = {name: without(rows, "category") for name, rows in STAGES.items()}
    rare = {name: [*rows, dataclasses.replace(rows[-1], sample_id="rare", difficulty="12")] for name, rows in plain.items()}
    hard, easy = verdict(rare, 3)
    assert hard.startswith("On questions of difficulty 10 accuracy went from 0.167 [")
    assert easy.startswith("On questions of difficulty 0 it thinks on 0%")


def test_nothing_is_said_where_nothing_can_be() -> None:
    assert verdict({}, 0) == []
    assert verdict({"base": [], "rl": STAGES["rl"]}, 0) == []
    assert verdict({name: without(rows, "category", "difficulty") for name, rows in STAGES.items()}, 0) == []
    other = [ask(n, (0, 4)[n % 2], stage="rl") for n in range(4)]
    assert verdict({"sft": STAGES["sft"], "rl": other}, 0) == [], "other questions"
    spans = {name: [dataclasses.replace(r, answer_type="time_span", scores={"tiou": 0.5}) for r in rows] for name, rows in STAGES.items()}
    assert verdict(spans, 0) == []


def test_evaluations_within_the_last_stage_are_no_stages() -> None:
    within = {"base": STAGES["base"], "sft": STAGES["sft"], "rl@5": STAGES["sft"], "rl": STAGES["rl"]}
    assert verdict(within, 0) == verdict(STAGES, 0)


def test_it_is_told_in_the_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", STAGES)
    told = verdict(STAGES, 3)
    assert View([run]).document("run/run")["said"][-len(told) :] == told
    plain = make_run(tmp_path / "plain", {name: without(rows, "category", "difficulty") for name, rows in STAGES.items()})
    assert not any(sentence.startswith("On ") for sentence in View([plain]).document("run/plain")["said"])
