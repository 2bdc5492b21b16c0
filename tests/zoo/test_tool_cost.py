"""Reward shaping `otc`, and the reward `tool_calls` that counts for it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import group, inputs
from vlmrl.protocols import RewardContext
from vlmrl.rewards.tool_calls import tool_calls
from vlmrl.zoo.reward_shaping.tool_cost import efficiency, fewest, otc

NAN = float("nan")


def columns(pairs, memory=None, samples=None, trajectories=None):
    """(reward, calls) per row."""
    rewards = torch.tensor(pairs, dtype=torch.float64)
    return dataclasses.replace(
        inputs([(r, 0, r == r) for r, _ in pairs]),
        rewards_NK=rewards,
        columns=("right", "calls"),
        sample_N=torch.tensor([7] * len(pairs) if samples is None else samples),
        trajectory_N=None if trajectories is None else torch.tensor(trajectories),
        memory={name: torch.tensor(value, dtype=torch.float64) for name, value in (memory or {}).items()},
    )


def shaped(method, x, **more):
    return method(x.rewards_NK, x.valid_N, x, reward="right", calls="calls", **more)[:, 0].tolist()


@pytest.mark.parametrize(
    ("m", "n", "expected"),
    [(0, 0, 1), (1, 0, 0.5), (3, 0, 0.2225), (0, 2, 0), (1, 2, 0.8660), (2, 2, 1), (4, 2, 0.8660), (8, 2, 0.5878)],
)
def test_otc_efficiency(m, n, expected):
    assert efficiency(m, n) == pytest.approx(expected, abs=5e-5)


def test_otc_pays_calls_only_where_they_are_needed():
    # the fewest so far were 4; a right answer with 2 is the new best before anything is scaled
    x = columns([(1, 2), (1, 8), (0, 0), (1, 4)], memory={"7": 4.0})
    assert shaped(otc, x) == pytest.approx([1.0, 0.5878, 0.0, 0.8660], abs=5e-5)
    assert fewest({"7": 4.0, "9": 1.0}, x, reward="right", calls="calls") == {"7": 2.0, "9": 1.0}


def test_otc_without_a_right_answer_changes_nothing_and_rows_have_their_own_best():
    assert shaped(otc, columns([(0.5, 3), (0, 1)])) == [0.5, 0.0]
    x = columns([(1, 0), (1, 3)], samples=[1, 2])
    assert shaped(otc, x) == [1.0, 1.0]
    assert shaped(otc, columns([(1, NAN), (NAN, 1)]))[0] == 1.0
    assert fewest({}, columns([(1, NAN), (0, 1)]), reward="right", calls="calls") == {}


def test_calls_of_an_attempt_are_those_of_its_turns():
    x = columns([(0, 1), (1, 1), (1, 8)], memory={"7": 2.0}, trajectories=[0, 0, 1])
    assert shaped(otc, x) == pytest.approx([0.0, 1.0, 0.5878], abs=5e-5)


def test_wrong_arguments_are_refused():
    x = columns([(1, 1)])
    with pytest.raises(ValueError, match="c is 0"):
        shaped(otc, x, c=0.0)
    with pytest.raises(ValueError, match="no reward column 'tools'"):
        otc(x.rewards_NK, x.valid_N, x, reward="right", calls="tools")
    with pytest.raises(ValueError, match="needs its memory"):
        shaped(otc, dataclasses.replace(x, memory=None))
    with pytest.raises(ValueError, match="'otc' needs sample_N"):
        shaped(otc, dataclasses.replace(x, sample_N=None))


def test_tool_calls():
    texts = ["<tool_call>zoom</tool_call> then <tool_call>zoom</tool_call>", "no call", "[zoom] [zoom] [zoom]"]
    assert tool_calls(group(texts), RewardContext()) == [2.0, 0.0, 0.0]
    assert tool_calls(group(texts), RewardContext(), tag="[zoom]") == [0.0, 0.0, 3.0]
    with pytest.raises(ValueError, match="tag is empty"):
        tool_calls(group(texts), RewardContext(), tag="")
