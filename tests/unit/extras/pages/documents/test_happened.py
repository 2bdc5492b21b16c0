"""The first sentences of a page: what moved, on which questions, what did not, and what is not decided."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.made_runs import held_out
from tests.support.pages import record
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import summarize
from vlmrl.extras.pages.documents.happened import evaluated, main_metric, what_happened

SEED = 0


def rows(stage: str, scores: list[float], *, unread: bool = False) -> list[Record]:
    """Answers to as many questions, about a box each."""
    out: list[Record] = []
    for n, score in enumerate(scores):
        broken = {"status": "truncated", "pred": None, "answer": None, "finish": "length"} if unread else {}
        own = record("box-1", "x", score, model=stage)
        out.append(dataclasses.replace(own, sample_id=f"q{n}", cluster=f"q{n}", sample_hash=f"q{n}", **broken))
    return out


def said_of(records: dict[str, list[Record]]) -> list[str]:
    return what_happened(evaluated(records, SEED))


def told(*scores: tuple[float, ...]) -> list[str]:
    """What is said of a run with these scores, of twenty questions each, before training, after SFT and after RL."""
    names = ("base", "rl") if len(scores) == 2 else ("base", "sft", "rl")
    return said_of({name: rows(name, list(own) * 10) for name, own in zip(names, scores, strict=True)})


def test_questions_that_moved_are_told_apart_from_those_that_did_not() -> None:
    """The story of a run whose SFT forgets hard questions and whose RL brings them back."""
    said = said_of({name: held_out(name, 40, 0) for name in ("base", "sft", "rl")})
    assert said[0] == "RL raised hard questions from 0.350 to 0.950 and thinks only there."
    more = said_of({name: held_out(name, 200, 0) for name in ("base", "sft", "rl")})
    assert more[0].startswith("RL raised hard questions most, from 0.2"), "easy ones moved by less than half as much, and surely"
    assert not any("stayed" in sentence or "rl" in sentence.split() for sentence in said)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (((0.2, 0.3), (0.7, 0.8)), "RL raised box IoU from 0.250 to 0.750 (+0.500"),
        (((0.9, 0.8), (0.1, 0.2)), "RL lowered box IoU from 0.850 to 0.150 (-0.700"),
        (((0.5, 0.1), (0.5, 0.1)), "RL did not move box IoU: it is 0.300 before and after it on 20 held-out questions."),
        (((0.0, 1.0), (1.0, 0.1)), "RL may have moved box IoU or not: 0.500 before it, 0.550 after it (+0.050 ["),
        (((0.1, 0.1), (0.5, 0.5), (0.5, 0.5)), "RL did not move box IoU: it is 0.500 before and after it"),
    ],
)
def test_a_change_is_called_what_its_interval_says(scores: tuple[tuple[float, ...], ...], words: str) -> None:
    assert told(*scores)[0].startswith(words)


def test_the_whole_training_is_told_after_its_last_stage() -> None:
    assert told((0.1, 0.1), (0.5, 0.5), (0.5, 0.5))[1].startswith("Altogether training raised box IoU from 0.100 to 0.500 (+0.400")
    assert told((0.5, 0.4), (0.1, 0.1), (0.5, 0.4))[1] == (
        "Altogether training did not move box IoU: it is 0.450 before and after it on 20 held-out questions."
    )


def test_answers_that_cannot_be_read_are_told() -> None:
    said = said_of({"base": rows("base", [0.2] * 9), "rl": rows("rl", [0.0] * 9, unread=True)})
    assert said[1].startswith("None of the answers after RL can be read")


def test_one_evaluation_has_no_difference_and_no_interval_without_width() -> None:
    (said,) = said_of({"base": rows("base", [0.5])})
    assert said == "Box IoU is 0.500 before training on 1 held-out question."
    assert said_of({}) == []


def test_the_primary_metric_goes_by_the_type_of_the_answers_and_is_in_their_summary() -> None:
    texts, boxes = held_out("base", 8, 0), rows("base", [0.1, 0.9])
    for found, metric in ((texts, "exact"), (boxes, "box_iou"), ([*texts, *boxes], "score")):
        assert main_metric(found) == metric
        assert metric in summarize(found, SEED).metrics
