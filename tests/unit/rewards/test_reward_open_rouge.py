"""rewards.open_rouge; ROUGE itself is in test_metrics_text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.open_rouge import open_rouge
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample

CTX = RewardContext()


def row(answer: str, *more: str, answer_type: str = "exact_text") -> Sample:
    return replace(sample(answer, gt={"answers": list(more)} if more else {}), answer_type=answer_type)


def answered(*texts: str) -> list[str]:
    return [f"<think>a red car</think><answer>{text}</answer>" for text in texts]


def test_by_hand() -> None:
    """`a blue car` against `a red car`: 2 of 3 words, 0 of 2 pairs, a subsequence of 2. `car`: 1 word of 1 and 3, no pairs."""
    texts = [*answered("A red car.", "a blue car", "car", "", "bus"), "a red car"]
    two_thirds, half = 2 / 3, 2 / 4
    wanted = [1, (two_thirds + 0 + two_thirds) / 3, (half + 0 + half) / 3, 0, 0, 0]
    assert open_rouge(group(texts, row("a red car")), CTX) == pytest.approx(wanted)


def test_the_best_gold_answer_counts() -> None:
    assert open_rouge(group(answered("a bus"), row("a red car", "?", "a bus")), CTX) == [1]


def test_rows_that_are_not_judged() -> None:
    assert open_rouge(group(answered("a", "b"), row("a", answer_type="choice")), CTX) == [None, None]
    assert open_rouge(group(answered("a", "b"), row("?!")), CTX) == [None, None]


def test_gold_passes_the_self_test() -> None:
    rows = [row("yes"), row("a red car"), row("红车"), row("The man, who is tall, waves.")]
    assert RewardRunner([("open_rouge", 1.0, open_rouge)]).self_test(rows, "think") == []


@pytest.mark.parametrize("soup", ["<answer>", "</answer>", "{", "\n", "red ", "<think>"])
def test_soup(soup: str) -> None:
    text = soup * (65536 // len(soup))
    scores = open_rouge(group([text, f"<answer>{text}</answer>"], row("a red car")), CTX)
    assert all(score is not None and score < 0.01 for score in scores)
