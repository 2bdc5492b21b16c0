"""rollout.leak: what gives an answer away and what only looks like it."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import sample
from vlmrl.rollout.leak import leak


def of(answer: str, answer_type: str = "math"):
    return dataclasses.replace(sample(answer), answer_type=answer_type)


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("The sum is FORTY  two, see?", "forty two", "answer"),
        ("fortytwos", "forty", None),
        ("think of 1234", "123", None),
        ("think of 123.", "123", "answer"),
        ("x <answer>", "anything", "answer_tag"),
        ("Option B looks at the door", "B", "answer"),
        ("the answer is (B)", "B", "answer"),
        ("so \\boxed{7}", "7", "answer"),
        ("answer: 7", "7", "answer"),
        ("the answer is 70", "7", None),
        ("7 people stand there", "7", None),
        ("the answer is not easy", "no", None),
        ("the answer is no", "no", "answer"),
        ("a b c", "", None),
    ],
)
def test_leak(text, answer, found):
    assert leak(text, of(answer)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it starts at 3 seconds", "number"),
        ("it starts at 3.00 seconds", "number"),
        ("it starts at 3.5 seconds", None),
        ("in the 3rd scene", None),
        ("look at [10, 20]", "coordinates"),
        ("look at (1.5,2)", "coordinates"),
        ("after the door opens", None),
    ],
)
def test_leak_of_places(text, found):
    assert leak(text, of("3.0 to 5.0", "time_span")) == found
