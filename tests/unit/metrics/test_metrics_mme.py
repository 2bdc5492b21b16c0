"""metrics.mme: the printed vector, sums of subtasks, and reading yes and no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.mme import COGNITION, PERCEPTION, Answered, Subtask, mme, read_yes_no, subtask_score


def test_subtask_vector() -> None:
    found = subtask_score({1: [True, True], 2: [True, False], 3: [False, False], 4: [True, True]})
    assert found == Subtask(accuracy=62.5, accuracy_plus=50.0)
    assert found.score == 112.5


def rows(subtask: str, *pairs: tuple[bool, bool]) -> list[Answered]:
    return [Answered(subtask=subtask, image=i, right=right) for i, pair in enumerate(pairs) for right in pair]


def test_kinds_are_sums_of_their_subtasks() -> None:
    found = mme([*rows("OCR", (True, True), (True, False)), *rows("count", (False, False)), *rows("code_reasoning", (True, False))])
    assert list(found.subtasks) == ["count", "OCR", "code_reasoning"]
    assert found.perception == pytest.approx(75 + 50)
    assert found.cognition == pytest.approx(50)
    assert mme(rows("OCR", (True, True))).cognition is None
    everything = [row for name in (*PERCEPTION, *COGNITION) for row in rows(name, (True, True))]
    assert (mme(everything).perception, mme(everything).cognition) == (2000, 800)


def test_the_same_picture_in_two_subtasks_is_two_pictures() -> None:
    assert mme([*rows("OCR", (True, True)), *rows("count", (True, False))]).perception == pytest.approx(200 + 50)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=9))
def test_bounds(pairs: list[tuple[bool, bool]]) -> None:
    found = subtask_score(dict(enumerate(pairs)))
    assert 0 <= found.accuracy_plus <= found.accuracy <= 100
    assert found.accuracy == pytest.approx(100 * sum(map(sum, pairs)) / (2 * len(pairs)))


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"picture 0 has 1 answers"):
        mme([Answered(subtask="OCR", image=0, right=True)])
    with pytest.raises(ValueError, match="unknown subtask 'ocr'"):
        mme([Answered(subtask="ocr", image=0, right=True)])
    with pytest.raises(ValueError, match="no pictures"):
        subtask_score({})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *[("yes", "yes"), ("No.", "no"), ("Y", "yes"), ("n", "no"), (" **Yes** ", "yes"), ("Yes, there is no doubt", "yes")],
        *[("no, yes would be wrong", "no"), ("The answer is yes.", "yes"), ("Final answer: No", "no")],
        *[("The answer is yes. No: the answer is no", "no"), ("Nope", None), ("Not sure", None), ("yesterday", None)],
        *[("There is no cat", None), ("other", None), ("", None), ("n't", None), ("N/A", None)],
    ],
)
def test_reading(text: str, said: str | None) -> None:
    assert read_yes_no(text) == said


@given(st.text(max_size=60))
def test_reading_never_fails(text: str) -> None:
    assert read_yes_no(text) in ("yes", "no", None)


@pytest.mark.parametrize("soup", ["yes ", "answer is ", "*", "\n", "answer: \"'(", "no"])
def test_soup_is_read_to_its_end(soup: str) -> None:
    assert read_yes_no(soup * (65536 // len(soup))) in ("yes", "no", None)
