"""rewards.lengths: length, overlong and cosine_length, on values of their formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.lengths import cosine_length, length, overlong
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Group, Prompt, Rollout

CTX = RewardContext()


def of_lengths(tokens: list[int], texts: list[str] | None = None, answer: str = "7", answer_type: str = "exact_text") -> Group:
    row = replace(sample(answer, gt={}), answer_type=answer_type)
    prompt = Prompt(sample=row, ids=(1,), media=(), spans=(), answer_format="think")
    texts = texts or [""] * len(tokens)
    rollouts = tuple(
        Rollout(k=k, ids=(5,) * n, logprobs=(-0.5,) * n, text=text, finish="stop", policy_version=0)
        for k, (n, text) in enumerate(zip(tokens, texts, strict=True))
    )
    return Group(id="g", prompt=prompt, rollouts=rollouts)


def test_length_is_the_envelope() -> None:
    lengths = [1, 10, 20, 30, 40, 50, 75, 100, 101]
    got = length(of_lengths(lengths), CTX, minimum=10, low=30, high=50, maximum=100)
    assert got == pytest.approx([0, 0, 0.5, 1, 1, 1, 0.5, 0, 0])
    assert length(of_lengths([1, 50, 51]), CTX, low=0, high=50, maximum=50) == [1, 1, 0]  # ramps without width are steps
    assert length(of_lengths([0]), CTX, low=1, high=2, maximum=3) == [None]


@pytest.mark.parametrize("band", [(5, 4, 6, 7), (0, 6, 5, 7), (0, 1, 8, 7), (-1, 1, 2, 3)])
def test_a_band_that_decreases(band: tuple[int, int, int, int]) -> None:
    minimum, low, high, maximum = band
    with pytest.raises(ValueError, match="minimum <= low <= high <= maximum"):
        length(of_lengths([1]), CTX, minimum=minimum, low=low, high=high, maximum=maximum)


def test_overlong_by_the_paper() -> None:
    """The paper's numbers: 16384 tokens are free, then 4096 lead to -1."""
    lengths = [1, 16384, 17408, 18432, 20480, 30000]
    assert overlong(of_lengths(lengths), CTX, maximum=20480, buffer=4096) == [0, 0, -0.25, -0.5, -1, -1]
    for maximum, buffer in ((10, 0), (10, 11), (0, 0)):
        with pytest.raises(ValueError, match="0 < buffer <= maximum"):
            overlong(of_lengths([1]), CTX, maximum=maximum, buffer=buffer)


def test_overlong_is_the_shape_of_the_same_name() -> None:
    torch = pytest.importorskip("torch")
    from vlmrl.algo.reward_shaping.soft_overlong import penalty

    lengths = list(range(1, 60, 3))
    theirs = penalty(torch.tensor(lengths), maximum=50, buffer=20, factor=1.0).tolist()
    assert overlong(of_lengths(lengths), CTX, maximum=50, buffer=20) == pytest.approx(theirs)


RIGHT, WRONG = "<think></think><answer>7</answer>", "<answer>8</answer>"
PAPER = {"correct_short": 2.0, "correct_long": 1.0, "wrong_short": -10.0, "wrong_long": 0.0, "exceeded": -10.0}


def test_cosine_length_by_hand() -> None:
    """At a quarter, half and three quarters of the maximum the cosine is sqrt(1/2), 0 and -sqrt(1/2)."""
    root = math.sqrt(0.5)
    lengths = [25, 50, 75, 25, 50, 75, 100, 120, 50]
    texts = [RIGHT] * 3 + [WRONG] * 3 + [RIGHT, WRONG, "7"]
    got = cosine_length(of_lengths(lengths, texts), CTX, maximum=100, **PAPER)
    right = [1.5 + 0.5 * root, 1.5, 1.5 - 0.5 * root]
    wrong = [-5 - 5 * root, -5, -5 + 5 * root]
    assert got == pytest.approx([*right, *wrong, -10, -10, -5])


def test_cosine_length_defaults() -> None:
    got = cosine_length(of_lengths([0, 50, 0, 50, 100], [RIGHT, RIGHT, WRONG, WRONG, RIGHT]), CTX, maximum=100)
    assert got == pytest.approx([1, 0.75, -1, -0.75, -1])


@given(st.integers(0, 99), st.integers(0, 99))
def test_shorter_is_better_when_right_and_worse_when_wrong(a: int, b: int) -> None:
    a, b = min(a, b), max(a, b)
    right_a, right_b, wrong_a, wrong_b = cosine_length(of_lengths([a, b, a, b], [RIGHT, RIGHT, WRONG, WRONG]), CTX, maximum=100)
    assert None not in (right_a, right_b, wrong_a, wrong_b)
    assert 1 >= right_a >= right_b > wrong_b >= wrong_a >= -1  # type: ignore[operator]


def test_cosine_length_takes_a_check() -> None:
    texts = ["<answer>14/2</answer>", "<answer>7</answer>", "<answer>6</answer>"]
    right, wrong = 0.75, -0.75

    def scores(**arguments: Any) -> list[float | None]:
        return list(cosine_length(of_lengths([50] * 3, texts, answer_type="math"), CTX, maximum=100, **arguments))

    assert scores() == pytest.approx([wrong, right, wrong])
    assert scores(check="math") == pytest.approx([right, right, wrong])
    assert scores(check="choice") == [None] * 3
    letters = of_lengths([50] * 2, ["<answer>(b)</answer>", "<answer>A</answer>"], answer="B", answer_type="choice")
    assert cosine_length(letters, CTX, maximum=100, check="choice") == pytest.approx([right, wrong])


def test_cosine_length_arguments() -> None:
    with pytest.raises(ValueError, match="maximum must be positive"):
        cosine_length(of_lengths([1]), CTX, maximum=0)
    with pytest.raises(ValueError, match="every right one must get more"):
        cosine_length(of_lengths([1]), CTX, maximum=9, correct_long=-0.6)


def test_gold_passes_the_self_test() -> None:
    """The self test's answers have no tokens: their length is free."""
    row = sample("7", gt={})
    columns = [
        ("cosine_length", 1.0, lambda g, c: cosine_length(g, c, maximum=100)),
        ("overlong", 1.0, lambda g, c: overlong(g, c, maximum=100, buffer=50)),
        ("length", 1.0, lambda g, c: length(g, c, low=10, high=50, maximum=100)),
    ]
    assert RewardRunner(columns).self_test([row], "think") == []
