"""The first sentence of a report: what moved, what did not, and what is not decided."""

from __future__ import annotations

import dataclasses

from tests.support.pages import record
from vlmrl.evals.score.records import Record
from vlmrl.extras.pages.happened import what_happened

SEED = 0


def rows(stage: str, scores: list[float], *, thought: bool = False, unread: bool = False) -> list[Record]:
    """Answers to as many questions, about a box each."""
    out: list[Record] = []
    for n, score in enumerate(scores):
        broken = {"status": "truncated", "pred": None, "answer": None, "finish": "length"} if unread else {}
        own = record("box-1", "x", score, model=stage, thought="t" if thought else None)
        out.append(dataclasses.replace(own, sample_id=f"q{n}", cluster=f"q{n}", sample_hash=f"q{n}", **broken))
    return out


def test_a_gain_is_told_with_its_interval() -> None:
    (first,) = what_happened({"base": rows("base", [0.2, 0.3] * 10), "rl": rows("rl", [0.7, 0.8] * 10)}, SEED)
    assert first == "From base to rl, box IoU rose from 0.250 to 0.750 (+0.500 (all equal)) on 20 held-out questions."
    (first,) = what_happened({"base": rows("base", [0.2, 0.3] * 10), "rl": rows("rl", [0.7, 0.9] * 10)}, SEED)
    assert first.startswith("From base to rl, box IoU rose from 0.250 to 0.800 (+0.550 [+0.53")


def test_a_loss_and_a_standstill_are_called_so() -> None:
    (fell,) = what_happened({"base": rows("base", [0.9] * 12), "rl": rows("rl", [0.1] * 12)}, SEED)
    assert "box IoU fell from 0.900 to 0.100" in fell
    (same,) = what_happened({"base": rows("base", [0.5, 0.1] * 6), "rl": rows("rl", [0.5, 0.1] * 6)}, SEED)
    assert "box IoU stayed 0.300 on 12" in same


def test_what_the_interval_leaves_open_is_not_decided() -> None:
    (open_,) = what_happened({"base": rows("base", [0.0, 1.0] * 6), "rl": rows("rl", [1.0, 0.1] * 6)}, SEED)
    assert "box IoU was 0.500 and is 0.550, a difference that is not decided" in open_


def test_the_last_of_several_stages_is_told_apart() -> None:
    said = what_happened({"base": rows("base", [0.1] * 10), "sft": rows("sft", [0.5] * 10), "rl": rows("rl", [0.5] * 10)}, SEED)
    assert "From base to rl, box IoU rose from 0.100 to 0.500" in said[0]
    assert said[1] == "In the last stage, rl, box IoU stayed 0.500."


def test_thoughts_that_vanish_and_answers_that_cannot_be_read_are_told() -> None:
    said = what_happened({"base": rows("base", [0.2] * 9, thought=True), "rl": rows("rl", [0.8] * 9)}, SEED)
    assert said[-1] == "Thoughts vanished: 100% of the answers had one, and none has after rl."
    said = what_happened({"base": rows("base", [0.2] * 9), "rl": rows("rl", [0.0] * 9, unread=True)}, SEED)
    assert said[1].startswith("None of the answers after rl can be read")


def test_one_evaluation_has_no_difference() -> None:
    assert what_happened({"base": rows("base", [0.5])}, SEED) == [
        "The model before training has box IoU 0.500 (no interval: 1 cluster) on 1 held-out question."
    ]
    assert what_happened({}, SEED) == []
