"""Thoughts step by step: what is right, wrong, missing and too many; which rows have true steps; the two scores; and their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pages import keep_row, make_run, media, picture, record, sample
from vlmrl.answers.tags import parse
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.scorers import score
from vlmrl.evals.score.steps import TrueStep, compare_steps, split_steps, step_scores, true_steps
from vlmrl.evals.score.summary import summarize
from vlmrl.extras.pages.documents.questions import MOST_SURPLUS, steps_doc
from vlmrl.extras.pages.view.view import View
from vlmrl.types import Sample

STATED = [{"time": 0, "text": "green"}, {"time": 1, "text": "red"}, {"time": 2.5, "text": "blue"}]
STEPS = (TrueStep(time=0.0, text="green"), TrueStep(time=1.0, text="red"), TrueStep(time=2.5, text="blue"))


def row(steps: Any = STATED, thought: str | None = "green, red, blue") -> Sample:
    return sample("walk", "exact_text", {}, meta={"steps": steps}, thought=thought)


def kinds(thought: str | None) -> list[str]:
    return [step.kind for step in compare_steps(thought, STEPS)]


def test_step_k_is_compared_with_step_k() -> None:
    assert kinds("green, red, blue") == ["right"] * 3
    assert kinds(" Green ,RED,\nblue ") == ["right"] * 3
    assert kinds("green, blue, blue") == ["right", "wrong", "right"]
    assert kinds("red, blue") == ["wrong", "wrong", "missing"]  # one step left out puts all after it in the wrong place
    assert kinds("green, red, blue, blue, red") == ["right"] * 3 + ["surplus"] * 2
    assert kinds("green,, blue") == ["right", "wrong", "right"]
    assert kinds("green; red; blue") == ["wrong", "missing", "missing"]
    for nothing in (None, "", "\n\n"):
        assert kinds(nothing) == []
    assert compare_steps("green", ()) == ()
    (last,) = compare_steps("green, red, blue, white", STEPS)[3:]
    assert (last.said, last.true) == ("white", None)


def test_scores_by_hand() -> None:
    assert step_scores("green, red, blue", STEPS) == {"steps_right": 1.0, "steps_all_right": 1.0}
    assert step_scores("green, red, blue, red", STEPS) == {"steps_right": 1.0, "steps_all_right": 0.0}
    assert step_scores("green, red", STEPS) == {"steps_right": pytest.approx(2 / 3), "steps_all_right": 0.0}
    assert step_scores("white", STEPS) == {"steps_right": 0.0, "steps_all_right": 0.0}
    assert step_scores(None, STEPS) == step_scores(" ", STEPS) == step_scores("green", ()) == {}


@given(st.lists(st.sampled_from(["green", "red", "blue", "x"]), min_size=1, max_size=6))
def test_every_step_of_either_side_is_shown_once(said: list[str]) -> None:
    compared = compare_steps(", ".join(said), STEPS)
    assert [step.said for step in compared if step.said is not None] == said
    assert [step.true for step in compared if step.true is not None] == list(STEPS)
    found = step_scores(", ".join(said), STEPS)
    assert 0 <= found["steps_right"] <= 1
    assert (found["steps_all_right"] == 1) == (said == ["green", "red", "blue"])


def test_splitting() -> None:
    assert split_steps("a, b ,c") == ["a", "b", "c"]
    assert split_steps("a, b,") == ["a", "b"]
    assert split_steps("a sentence.") == ["a sentence."]


@pytest.mark.parametrize(
    ("stated", "thought"),
    [
        (None, None),
        (7, None),  # a number of steps, as rows of other worlds may have
        ([], None),
        (["green"], None),
        ([{"time": 0}], None),
        ([{"time": "0", "text": "green"}], None),
        ([{"time": float("nan"), "text": "green"}], None),
        ([{"time": 0, "text": "green"}, {"text": "red"}], None),
        (STATED, "The ball is under the green cup."),  # the row's own thought is no list of steps
    ],
)
def test_rows_without_true_steps(stated: Any, thought: str | None) -> None:
    assert true_steps(row(stated, thought)) == ()


def test_true_steps_of_a_row() -> None:
    assert true_steps(row()) == true_steps(row(thought=None)) == STEPS
    assert true_steps(row(thought="green, green, blue")) == STEPS, "a careless thought is one of as many steps"


def test_records_keep_the_scores_and_tables_show_them() -> None:
    def scores(text: str) -> dict[str, float]:
        of = sample("walk", "exact_text", {}, meta={"steps": STATED}, thought=None, answer="blue")
        return score("blue", parse(text, "think_or_not"), of)[2]

    assert scores("<think>green, blue, blue</think><answer>blue</answer>") == {
        "exact": 1.0,
        "steps_right": pytest.approx(2 / 3),
        "steps_all_right": 0.0,
    }
    assert scores("<think>\n\n</think><answer>blue</answer>") == {"exact": 1.0}
    kept = [answer("base", "green, blue, blue", n=0), answer("base", None, n=1)]
    summary = summarize(kept, 0)
    assert summary.metrics["steps_right"].mean == pytest.approx(2 / 3), "of answers with a thought"
    assert (LABELS["steps_right"], LABELS["steps_all_right"]) == ("steps right", "all steps right")


def answer(model: str, thought: str | None, n: int = 0) -> Record:
    scores = {"exact": 1.0, **step_scores(thought, STEPS)}
    text = f"<think>{thought or ''}</think><answer>blue</answer>"
    more = {
        "sample_id": f"walk-{n}",
        "sample_hash": str(n),
        "cluster": f"v{n}",
        "answer_type": "exact_text",
        "answer_format": "think_or_not",
    }
    return record("box-1", "blue", 1.0, model=model, thought=thought, text=text, scores=scores, task="walk", **more)


def frames(count: int = 8) -> np.ndarray:
    return picture([(100 * i, 300, 100 * i + 200, 700) for i in range(8)], count=count, size=(56, 56))


def card(*thoughts: str | None) -> dict[str, Any]:
    return steps_doc(STEPS, {name: [answer(name, thought)] for name, thought in zip(("base", "sft", "rl"), thoughts, strict=False)})


def test_steps_stand_under_their_seconds() -> None:
    made = card("green, blue", "green, red, blue, red")
    assert [(c["text"], c["small"]) for c in made["header"][1:]] == [("0 s", "green"), ("1 s", "red"), ("2.5 s", "blue")]
    (base, *before), (sft, *after) = made["rows"]
    assert (base, sft) == (
        {"text": "before training", "small": "1 of 3 right"},
        {"text": "after SFT", "small": "3 of 3 right, 1 surplus"},
    )
    assert [(c["kind"], c["text"]) for c in before] == [("right", "✓ green"), ("wrong", "✗ blue"), ("missing", "– missing")]
    assert [(c["kind"], c["text"]) for c in after][2:] == [("right", "✓ blue"), ("surplus", "+ red")]


def test_answers_without_a_thought_and_those_that_never_stop() -> None:
    rows = card(None, ", ".join(["red"] * 90), "x" * 500)["rows"]
    assert [len(row) - 1 for row in rows] == [0, 3 + MOST_SURPLUS, 3]
    assert [row[0]["small"] for row in rows] == ["no thought", "1 of 3 right, 87 surplus", "0 of 3 right"]
    assert len(rows[2][1]["text"]) < 70


def test_the_report_shows_them_as_text(tmp_path: Path) -> None:
    said = {"sft": "green, <b>red</b>, \x1bblue, red", "rl": "green, red"}
    path = make_run(tmp_path / "run", {name: [answer(name, thought)] for name, thought in said.items()}, frames=False)
    of = sample("walk-0", "exact_text", {}, meta={"steps": STATED}, thought=None, question="Where to?")
    keep_row(path / "eval" / "frames", "0", of, media(frames(), video=True), content="0")
    steps = View([path]).document("question/0")["steps"]
    assert [cell["text"] for cell in steps["rows"][0][1:]] == ["✓ green", "✗ <b>red</b>", "✗ \x1bblue", "+ red"]
    plain = make_run(tmp_path / "plain", {"rl": [answer("rl", "green")]}, frames=False)
    assert View([plain]).document("question/0")["steps"] is None
