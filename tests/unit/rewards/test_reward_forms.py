"""rewards.format: think_format and structure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.exact import exact
from vlmrl.rewards.format import format_reward, structure, tag_share, think_format, thinks_first
from vlmrl.rewards.run.runner import RewardRunner

CTX = RewardContext()
GOOD = "<think>x</think><answer>y</answer>"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        *[("<think>x</think> y", True), ("  <think>\n\n</think>\ny", True), (GOOD, True), ("<THINK>x</think>y", True)],
        *[("<thinking>x</thinking>y", True), ("<think>x</thinking>y", False)],
        *[("<think>x</think>", False), ("<think>x</think> \n", False)],
        *[("y <think>x</think> y", False), ("y", False), ("", False), ("</think><think>y", False), ("<think>x y", False)],
        *[("<think>a</think>b<think>c</think>d", False), ("<think><think>a</think></think>b", False), ("x</think>y", False)],
    ],
)
def test_think_format(text: str, good: bool) -> None:
    assert thinks_first(text) is good
    assert think_format(group([text]), CTX) == [float(good)]
    assert think_format(group([text], answer_format="answer_only"), CTX) == [None]


@pytest.mark.parametrize(
    ("text", "share"),
    [
        *[(GOOD, 1), ("a <think>x</think> b <answer>y</answer> c", 1), ("<thinking>x</thinking><Answer>y</ANSWER>", 1)],
        *[("<answer>y</answer>", 0.5), ("<think>x</think>y", 0.5), ("<think>", 0.25), ("<think>x<answer>y</answer>", 0.75)],
        *[("<answer>y</answer><think>x</think>", 0.5), ("</think><think>x<answer>y</answer>", 0.75), ("</answer></think>", 0.25)],
        *[("</answer><answer></think><think>", 0.25), (GOOD + GOOD, 0)],
        *[(GOOD + "<answer>z</answer>", 0.5), ("", 0), ("think answer", 0)],
        *[(GOOD + "<think>", 0.75)],
    ],
)
def test_structure(text: str, share: float) -> None:
    assert structure(group([text]), CTX) == [share]


def test_structure_of_a_prompt_for_the_answer_alone() -> None:
    texts = ["<answer>y</answer>", "<think>x</think><answer>y</answer>", "<answer>y", "y", "</answer>y<answer>"]
    assert structure(group(texts, answer_format="answer_only"), CTX) == [1, 1, 0.5, 0, 0.5]


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x", " "]), max_size=8).map("".join))
def test_the_full_form_has_full_structure_and_thinks_first(text: str) -> None:
    share = tag_share(text, "think")
    assert share in (0, 0.25, 0.5, 0.75, 1)
    if format_reward(group([text], answer_format="think"), CTX) == [1.0]:
        assert share == 1
        assert thinks_first(text)


@pytest.mark.parametrize("answer_format", ["think", "think_or_not", "answer_only"])
def test_gold_passes_the_self_test(answer_format: str) -> None:
    columns = [("exact", 1.0, exact), ("think_format", 1.0, think_format), ("structure", 1.0, structure)]
    assert RewardRunner(columns).self_test([sample("7", gt={})], answer_format) == []


@pytest.mark.parametrize("soup", ["<think>", "</think>", "<answer>", "</answer>", "<", "<think", "{", "\n", "<think></think>"])
def test_soup(soup: str) -> None:
    of = group([soup * (65536 // len(soup)), "<think>x</think>" + soup * (65536 // len(soup))])
    assert think_format(of, CTX) == [0, 0]
    first, second = structure(of, CTX)
    assert first == 0
    assert second in (0, 0.25, 0.5)
