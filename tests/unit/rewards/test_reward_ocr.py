"""rewards.ocr and metrics.ocr: the published vectors, and properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, sample
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.metrics.ocr import anls, similarity, word_error_rate
from vlmrl.protocols import RewardContext
from vlmrl.rewards.ocr import ocr_anls, ocr_wer
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample

CTX = RewardContext()


def row(answer: str, *more: str, answer_type: str = "short_text") -> Sample:
    return replace(sample(answer, gt={"answers": list(more)} if more else {}), answer_type=answer_type)


def answered(*texts: str) -> list[str]:
    return [f"<think>x</think><answer>{text}</answer>" for text in texts]


@pytest.mark.parametrize(
    ("pred", "golds", "score"),
    [
        *[("hello", ["hello"], 1), ("hallo", ["hello"], 0.8), ("help", ["hello"], 0.6)],
        *[("hexxx", ["hello"], 0), ("world", ["hello"], 0)],
        *[("abcd", ["abxy"], 0.5), ("$1,200", ["1200", "$1,200"], 1), ("15%", ["15"], 2 / 3), ("", ["hello"], 0), ("", [""], 1)],
        *[(" Hello\n World ", ["hello world"], 1), ("hello   ", ["hallo"], 0.8)],
    ],
)
def test_anls(pred: str, golds: list[str], score: float) -> None:
    assert anls(pred, golds) == pytest.approx(score)


def test_anls_at_the_threshold_by_both_conventions() -> None:
    assert anls("abcd", ["abxy"]) == 0.5
    assert anls("abcd", ["abxy"], strict=True) == 0.0
    assert anls("hallo", ["hello"], threshold=0.8) == 0.8  # 1 - 1/5, whatever the last bit
    assert anls("hallo", ["hello"], threshold=0.8, strict=True) == 0
    with pytest.raises(ValueError, match="no gold"):
        anls("a", [])


@pytest.mark.parametrize(
    ("pred", "gold", "rate"),
    [
        *[("a b c x", "a b c d", 0.25), ("w x y z", "a b c d", 1.0), ("a b d", "a b c d", 0.25), ("a b c d e f", "a b c d", 0.5)],
        *[("", "a b", 1.0), ("A", "a", 1.0), ("a b c", "x", 3.0), ("", "", 0.0), ("a b", "", 2.0), (" a\nb ", "a b", 0.0)],
    ],
)
def test_word_error_rate(pred: str, gold: str, rate: float) -> None:
    assert word_error_rate(pred, gold) == rate


@given(st.text(max_size=30), st.text(max_size=30))
def test_similarities_are_symmetric_shares(a: str, b: str) -> None:
    assert 0 <= similarity(a, b) == similarity(b, a) <= 1
    assert anls(a, [a]) == 1
    assert anls(a, [b], strict=True) <= anls(a, [b]) <= anls(a, [b, a])


def test_reward_ocr_anls() -> None:
    texts = [*answered("STOP here", "stop hare", "stop", "go there now", ""), "STOP here"]
    assert ocr_anls(group(texts, row("STOP here")), CTX) == pytest.approx([1, 8 / 9, 0, 0, 0, 0])
    assert ocr_anls(group(texts, row("STOP here")), CTX, threshold=0.4) == pytest.approx([1, 8 / 9, 4 / 9, 0.0, 0, 0])


def test_reward_ocr_wer() -> None:
    texts = [*answered("STOP here", "stop hare", "STOP hare", "STOP here now", "go there now", ""), "STOP here"]
    assert ocr_wer(group(texts, row("STOP here")), CTX) == [1, 0, 0.5, 0.5, 0, 0, 0]


def test_the_best_gold_answer_counts() -> None:
    assert ocr_anls(group(answered("1200"), row("$1,200", "1200")), CTX) == [1]
    assert ocr_wer(group(answered("12 00"), row("$1,200", "12 00")), CTX) == [1]


def test_rows_and_arguments_that_do_not_fit() -> None:
    other = group(answered("a", "b"), row("a", answer_type="exact_text"))
    assert ocr_anls(other, CTX) == ocr_wer(other, CTX) == [None, None]
    with pytest.raises(ValueError, match="threshold"):
        ocr_anls(other, CTX, threshold=1.5)


def test_gold_passes_the_self_test() -> None:
    columns = [("ocr_anls", 1.0, ocr_anls), ("ocr_wer", 1.0, ocr_wer)]
    rows = [row("STOP"), row("EXIT  12", "exit 12"), row("你好"), row("%")]
    assert RewardRunner(columns).self_test(rows, "think") == []


@pytest.mark.parametrize("soup", ["<answer>", "</answer>", "{", "\n", "x ", "xy"])
def test_soup(soup: str) -> None:
    text = soup * (65536 // len(soup))
    of = group([text, f"<answer>{text}</answer>"], row("STOP here"))
    assert ocr_anls(of, CTX) == ocr_wer(of, CTX) == [0, 0]


def test_the_scorer_of_evaluation_agrees() -> None:
    of = row("STOP here", "stop hare")
    for answer in ("STOP here", "stop here", "go", ""):
        one = group(answered(answer), of)
        wanted = {"anls": ocr_anls(one, CTX)[0], "word_accuracy": ocr_wer(one, CTX)[0]}
        more = {"relaxed": float(answer.lower() == "stop here"), "contained": float(answer.lower() == "stop here")}
        assert ANSWER_TYPES["short_text"].score(answer, of) == ((), (), wanted | more)
    assert ANSWER_TYPES["short_text"].score(None, of) == (None, (), {"anls": 0.0, "word_accuracy": 0.0, "relaxed": 0.0, "contained": 0.0})
