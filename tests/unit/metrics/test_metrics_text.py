"""metrics.text: vectors by hand and of the published evaluation codes."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics import text
from vlmrl.metrics.text import (
    edit_distance,
    mean_rouge,
    option_texts,
    read_choice,
    relaxed_accuracy,
    rouge_l,
    rouge_n,
    rouge_tokens,
)

ANIMALS = ["a cat", "a black cat", "a dog", "no animal"]


def slow_distance(a: list[str], b: list[str]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def slow_lcs(a: list[str], b: list[str]) -> int:
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            best[i + 1][j + 1] = best[i][j] + 1 if x == y else max(best[i][j + 1], best[i + 1][j])
    return best[-1][-1]


WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=9)


@given(WORDS, WORDS)
def test_edit_distance_and_rouge_l_are_those_of_the_textbook(a: list[str], b: list[str]) -> None:
    assert edit_distance(a, b) == slow_distance(a, b) == edit_distance("".join(a), "".join(b))
    assert rouge_l(a, b) == (pytest.approx(2 * slow_lcs(a, b) / (len(a) + len(b))) if b else None)


def test_rouge_by_hand() -> None:
    """`the cat sat on the mat` against `the cat the mat`: 4 words shared of 6 and 4; 2 pairs (the cat, the mat) of 5 and 3; the
    longest common subsequence is all 4."""
    pred, gold = rouge_tokens("The cat sat on the mat."), rouge_tokens("the cat; the mat")
    assert pred == ["the", "cat", "sat", "on", "the", "mat"]
    assert rouge_n(pred, gold, 1) == pytest.approx(8 / 10)
    assert rouge_n(pred, gold, 2) == pytest.approx(4 / 8)
    assert rouge_l(pred, gold) == pytest.approx(8 / 10)
    assert mean_rouge("The cat sat on the mat.", "the cat; the mat") == pytest.approx((0.8 + 0.5 + 0.8) / 3)


def test_rouge_counts_a_repeated_word_once_per_gold_occurrence() -> None:
    assert rouge_n(["the"] * 4, ["the", "cat"], 1) == pytest.approx(2 / 6)


def test_rouge_order_matters_to_l_and_2_only() -> None:
    pred, gold = ["c", "b", "a"], ["a", "b", "c"]
    assert rouge_n(pred, gold, 1) == 1
    assert rouge_n(pred, gold, 2) == 0
    assert rouge_l(pred, gold) == pytest.approx(1 / 3)


def test_rouge_at_the_edges() -> None:
    assert mean_rouge("cat", "Cat!") == 1  # one word has no pairs, and its gold answer is still right
    assert mean_rouge("", "cat") == mean_rouge("?!", "a cat") == 0
    assert mean_rouge("cat", "?!") is None
    assert rouge_tokens("红色 car_2 ü") == ["红", "色", "car", "2", "ü"]
    with pytest.raises(ValueError, match="at least 1"):
        rouge_n(["a"], ["a"], 0)


@given(st.text(max_size=40), st.text(max_size=40))
def test_rouge_is_a_share_and_symmetric_where_both_have_pairs(a: str, b: str) -> None:
    forward, backward = mean_rouge(a, b), mean_rouge(b, a)
    assert forward is None or 0 <= forward <= 1
    if len(rouge_tokens(a)) > 1 and len(rouge_tokens(b)) > 1:
        assert forward == pytest.approx(backward)
        assert mean_rouge(a, a) == 1


@pytest.mark.parametrize(
    ("pred", "gold", "right"),
    [
        *[("95", "100", True), ("105", "100", True), ("94.9", "100", False), ("105.1", "100", False)],
        *[("5%", "0.05", True), ("0.05", "5%", True), ("5", "5%", False), ("-95", "-100", True), ("95", "-100", False)],
        *[("Red", "red", True), ("red.", "red", False), (" red ", "red", True)],
        *[("0.0", "0", False), ("0", "0", True), ("1,000", "1000", False), ("42", "42.0", True), ("1e2", "100", True)],
        *[("nan", "5", False), ("inf", "5", False), ("nan", "NaN", True), ("", "5", False), ("9" * 70, "5", False)],
    ],
)
def test_relaxed_accuracy(pred: str, gold: str, right: bool) -> None:
    assert relaxed_accuracy(pred, gold) is right


def test_relaxed_accuracy_takes_another_tolerance() -> None:
    assert relaxed_accuracy("90", "100", tolerance=0.1)
    assert not relaxed_accuracy("95", "100", tolerance=0.01)


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        *[("B", "B"), ("b", "B"), ("(B)", "B"), ("B.", "B"), ("[c]", "C"), ("**B**", "B"), (' "B" ', "B")],
        *[("B. a cat", "B"), ("(B) a cat", "B"), ("b) a cat", "B"), ("B: cat", "B"), ("A. A cat sits", "A")],
        *[("The answer is B", "B"), ("the answer is (B).", "B"), ("Answer: C", "C"), ("option D, since it fits", "D")],
        *[("I would say B", "B"), ("A dog and so B", "B"), ("It must be (b), I think", "B")],
        *[("A or B", None), ("A. cat or B. dog", None), ("The answer is A, no, the answer is B", None), ("AB", None)],
        *[("", None), ("no idea", None), ("A cat is there", None), ("I do not know", None), ("I'd say", None)],
        *[("B, B and again B", "B"), ("Vitamin C", "C"), ("A is right", "A")],
    ],
)
def test_read_choice_without_options(answer: str, letter: str | None) -> None:
    assert read_choice(answer) == letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        *[("a dog", "C"), ("A DOG.", "C"), ("It is a dog, clearly", "C"), ("a black cat", "B"), ("a cat", "A")],
        *[("I see a black cat there", "B"), ("a cat or a dog", None), ("a cat and a black cat", None)],
        *[("B. a black cat", "B"), ("B. a dog", None), ("C, a dog", "C"), ("E", None), ("the answer is F", None)],
        *[("a horse", None), ("a doge", None), ("", None)],
    ],
)
def test_read_choice_with_options(answer: str, letter: str | None) -> None:
    assert read_choice(answer, ANIMALS) == letter


def test_options_with_labels_of_their_own() -> None:
    assert option_texts(["A. Cat", "B. Dog"]) == option_texts(["(a) cat", "(b) dog"]) == {"A": "cat", "B": "dog"}
    assert option_texts(["B. cat", "A. dog"]) == {"A": "b. cat", "B": "a. dog"}  # not labels in order: taken as text
    assert read_choice("dog", ["A. Cat", "B. Dog"]) == read_choice("B. dog", ["A. Cat", "B. Dog"]) == "B"
    assert read_choice("yes", ["yes", "yes"]) is None
    assert read_choice("one black cat", ["cat", "black cat"]) == "B"  # the longer of two that are found
    with pytest.raises(ValueError, match="27 options"):
        option_texts(["x"] * 27)


@given(st.integers(0, 3), st.sampled_from(["{}", "({})", "{}.", "{}. {t}", "({}) {t}", "The answer is {}", "Answer: ({})", "{t}"]))
def test_every_way_of_writing_an_option_gives_it(i: int, form: str) -> None:
    letter = "ABCD"[i]
    assert read_choice(form.format(letter, t=ANIMALS[i]), ANIMALS) == letter


@given(st.text(alphabet="ABab()[].:* 'answer is", max_size=80))
def test_read_choice_gives_an_option_or_nothing(answer: str) -> None:
    assert read_choice(answer, ["one", "two"]) in ("A", "B", None)


@pytest.mark.parametrize("soup", ["A ", "(A", "(", "[[", "answer is ", "\n", "**", "a dog ", "{}"])
def test_soup_is_read_to_its_end(soup: str) -> None:
    long = soup * (65536 // len(soup))
    assert read_choice(long, ANIMALS) in ("A", "B", "C", "D", None)
    assert relaxed_accuracy(long, "5") is False
    assert mean_rouge(long, "a large horse") in (0.0, pytest.approx(0.0, abs=0.01))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("rapidfuzz"):
            raise ImportError(name)
        return whole(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install rapidfuzz"):
        text.edit_distance("a", "b")
