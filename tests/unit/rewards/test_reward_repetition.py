"""rewards.repetition and metrics.repetition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, sample
from vlmrl.metrics.repetition import repeated_share, words_of
from vlmrl.protocols import RewardContext
from vlmrl.rewards.exact import exact
from vlmrl.rewards.repetition import repetition
from vlmrl.rewards.run.runner import RewardRunner

CTX = RewardContext()


@pytest.mark.parametrize(
    ("text", "n", "share"),
    [
        *[("a b c d", 2, 0), ("a b a b", 2, 1 / 3), ("a a a a", 2, 2 / 3), ("a a a a", 1, 3 / 4), ("a b", 3, 0), ("", 1, 0)],
        *[("a b c a b c a b c", 3, 4 / 7), ("A a", 1, 1 / 2), ("a b a c a b", 2, 1 / 5)],
    ],
)
def test_by_hand(text: str, n: int, share: float) -> None:
    assert repeated_share(words_of(text), n) == pytest.approx(share)
    assert repetition(group([text]), CTX, size=n) == pytest.approx([-share])


def test_the_default_is_three_words_and_no_repetition_is_plain_zero() -> None:
    scores = repetition(group(["a b c a b c a b c", "a b a b", ""]), CTX)
    assert scores == pytest.approx([-4 / 7, 0, 0])
    assert str(scores[2]) == "0.0"  # not -0.0


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 5))
def test_the_share_is_that_of_a_slow_count(words: list[str], n: int) -> None:
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    again = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert repeated_share(words, n) == pytest.approx(again / len(grams) if grams else 0)


def test_sizes_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        repetition(group(["a"]), CTX, size=0)
    with pytest.raises(ValueError, match="at least 1"):
        repeated_share(["a"], 0)


def test_a_gold_thought_that_repeats_itself_passes_the_self_test() -> None:
    row = sample("7", gt={}, thought="the red one is left of the red one is left of the blue one")
    assert RewardRunner([("exact", 1.0, exact), ("repetition", 0.1, repetition)]).self_test([row], "think") == []


@pytest.mark.parametrize("soup", ["<think> ", "{ ", "a\n", "a b "])
def test_soup_is_punished(soup: str) -> None:
    score = repetition(group([soup * (65536 // len(soup))]), CTX)[0]
    assert score is not None
    assert -1 < score < -0.99
