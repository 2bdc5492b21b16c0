"""Thoughts step by step: what is right, wrong, missing and too many; which rows have true steps; the two scores; and their tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vlmrl.extras.pages.browser import by_sample, model_colours, question
from vlmrl.extras.pages.run_page import render
from vlmrl.extras.pages.step_table import MOST_SURPLUS, StepTable

from tests.support.pages import make_run, media, picture, record, sample
from vlmrl.answers.tags import parse
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.scorers import score
from vlmrl.evals.score.steps import TrueStep, compare_steps, split_steps, step_scores, true_steps
from vlmrl.evals.score.summary import summarize
from vlmrl.extras.pages.runfiles import frames_of, load_run, make_frames, read_frames, save_media
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


def card(*thoughts: str | None, video: bool = True) -> StepTable | None:
    kept = frames_of(row(), media(frames() if video else frames(1), video=video))
    records = {name: [answer(name, thought)] for name, thought in zip(("base", "sft", "rl"), thoughts, strict=False)}
    return question(0, "walk-0", by_sample(records)["walk-0"], model_colours(list(records)), kept).steps


def test_steps_stand_under_the_frames_of_their_seconds() -> None:
    made = card("green, blue", "green, red, blue, red")
    assert made is not None
    assert [(c.label, c.text, c.offset) for c in made.columns] == [
        ("0 s", "green", 0.0),
        ("1 s", "red", pytest.approx(100 * 2 / 7)),  # two frames a second
        ("2.5 s", "blue", pytest.approx(100 * 5 / 7)),
    ]
    base, sft = made.lines
    assert [(c.kind, c.sign, c.text) for c in base.cells] == [("right", "✓", "green"), ("wrong", "✗", "blue"), ("missing", "–", "missing")]
    assert [(c.kind, c.sign, c.text) for c in sft.cells][2:] == [("right", "✓", "blue"), ("surplus", "+", "red")]
    assert (base.note, sft.note, made.surplus) == ("1 of 3 right", "3 of 3 right, 1 surplus", 1)
    still = card("green", video=False)
    assert still is not None
    assert [c.offset for c in still.columns] == [None] * 3


def test_answers_without_a_thought_and_those_that_never_stop() -> None:
    made = card(None, ", ".join(["red"] * 90), "x" * 500)
    assert made is not None
    assert [len(line.cells) for line in made.lines] == [0, 3 + MOST_SURPLUS, 3]
    assert [line.note for line in made.lines] == ["no thought", "1 of 3 right, 87 surplus", "0 of 3 right"]
    assert made.surplus == MOST_SURPLUS
    assert len(made.lines[2].cells[0].text) < 70


def test_cards_of_other_rows_have_no_steps() -> None:
    kept = make_frames("walk-0", frames=frames(), times=np.arange(8) / 2, question="?", gold=None, duration=4.0)
    records = {"base": [answer("base", "green")]}
    for shown in (kept, None):
        assert question(0, "walk-0", by_sample(records)["walk-0"], model_colours(["base"]), shown).steps is None


def test_the_report_shows_them_and_escapes_what_a_thought_says(tmp_path: Path) -> None:
    said = {"sft": "green, <b>red</b>, \x1bblue, red", "rl": "green, red"}
    path = make_run(tmp_path / "run", {name: [answer(name, thought)] for name, thought in said.items()}, frames=False)
    of = sample("walk-0", "exact_text", {}, meta={"steps": STATED}, thought=None, question="Where to?")
    save_media(path / "eval" / "frames", of, media(frames(), video=True))
    run = load_run(path)
    assert run.frames[0].steps == STEPS
    text = render(run)
    table = text[text.index('<table class="steps">') :]
    table = table[: table.index("</table>")]
    cells = re.findall(r'<span class="(\w+)" title="\1">(.*?)</span>', table)
    assert cells == [
        ("right", "✓ green"),
        ("wrong", "✗ &lt;b&gt;red&lt;/b&gt;"),
        ("wrong", "✗ \\u001bblue"),
        ("surplus", "+ red"),
        ("right", "✓ green"),
        ("right", "✓ red"),
        ("missing", "– missing"),
    ]
    assert {len(re.findall(r"<td", line)) for line in table.split("<tr")[2:]} == {1 + 3 + 1 + 1}, "every line is as wide as the head"
    assert table.count('<div class="strip0') == 3
    assert "\x1b" not in text


def test_frames_of_earlier_versions_have_no_steps(tmp_path: Path) -> None:
    path = save_media(tmp_path, row(), media(frames(), video=True))
    assert read_frames(tmp_path, [])[0].steps == STEPS
    text = path.read_text()
    start = text.index('"steps": [')
    path.write_text(text[:start] + text[text.index("], ", start) + 3 :])
    assert read_frames(tmp_path, [])[0].steps == ()
