"""Reward `surrogate_length`."""

from __future__ import annotations

import pytest

from tests.support.builders import group
from vlmrl.protocols import RewardContext
from vlmrl.zoo.rewards.surrogate_length import parabola, surrogate_length

CTX = RewardContext()


def test_surrogate_length_by_hand():
    assert [parabola(x, 0.5) for x in (0, 0.1, 0.25, 0.5, 0.6, 0.75, 1)] == pytest.approx([0, 0.36, 0.75, 1, 0.92, 0.5, -1])
    good = "<think>abc</think><answer>1</answer>"
    assert surrogate_length(group([good]), CTX, maximum=2 * len(good)) == [1.0]
    assert surrogate_length(group([good]), CTX, maximum=len(good)) == [-1.0]


def test_surrogate_length_needs_the_form_for_more_than_nothing():
    assert surrogate_length(group(["abcd"]), CTX, maximum=8) == [0.0]
    assert surrogate_length(group(["abcd"]), CTX, maximum=4) == [-1.0]


def test_surrogate_length_refuses_its_arguments():
    with pytest.raises(ValueError, match="surrogate_length"):
        surrogate_length(group(["x"]), CTX, maximum=8, turn=1.0)
