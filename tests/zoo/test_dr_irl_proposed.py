"""algo.reweight.dr_irl_proposed, and the reward of its column."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.support.builders import group, inputs, sample
from vlmrl.protocols import RewardContext
from vlmrl.zoo.rewards.demonstration_match_proposed import demonstration_match_proposed, match
from vlmrl.zoo.reweight.dr_irl_proposed import dr_irl_proposed, responsiveness

NAN = float("nan")


def with_columns(like, gaps, valid=None):
    x = inputs([(0.0, 0, True if valid is None else valid[i]) for i in range(len(like))])
    return dataclasses.replace(x, rewards_NK=torch.tensor([like, gaps]).double().T, columns=("like", "gap"))


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def test_dr_irl_proposed_by_hand():
    # similarities 0.9 and 0.5: sigmoid(0.1) / sigmoid(0.3) and sigmoid(0.5) / sigmoid(0.3)
    x = with_columns([0.9, 0.5], [0.0, 0.0])
    assert dr_irl_proposed(x, torch.tensor([1.0, -1.0]), similarity="like").tolist() == pytest.approx([0.9139, -1.0836], abs=1e-4)


def test_dr_irl_proposed_leaves_outlying_gaps_out():
    # gaps 0, 0.2, 4: mean 1.4; (0 - 1.4)^2 = 1.96 and (0.2 - 1.4)^2 = 1.44 are within 2, 6.76 is not
    gaps, groups, valid = torch.tensor([0.0, 0.2, 4.0]).double(), torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    assert responsiveness(gaps, groups, valid, 2.0).tolist() == pytest.approx([sigmoid(0.1) / sigmoid(1.4)] * 3)
    assert responsiveness(gaps, groups, valid, 0.1).tolist() == [1.0] * 3, "all are outliers"
    x = with_columns([0.5, 0.5, 0.5], [0.0, 0.2, 4.0])
    out = dr_irl_proposed(x, torch.tensor([1.0, 1.0, -2.0]), similarity="like", gap="gap", tau=2.0)
    assert out.tolist() == pytest.approx([v * sigmoid(0.1) / sigmoid(1.4) for v in (1.0, 1.0, -2.0)])


def test_dr_irl_proposed_keeps_what_was_not_judged_and_moves_nobody_by_it():
    x = with_columns([0.9, 0.5, NAN, 0.0], [0.0] * 4, valid=[True, True, True, False])
    out = dr_irl_proposed(x, torch.tensor([1.0, -1.0, 0.7, 0.0]), similarity="like")
    assert out.tolist() == pytest.approx([0.9139, -1.0836, 0.7, 0.0], abs=1e-4)


def test_dr_irl_proposed_refuses_its_arguments():
    x = with_columns([0.9, 0.5], [0.0, 0.0])
    with pytest.raises(ValueError, match="tau"):
        dr_irl_proposed(x, torch.zeros(2), similarity="like", tau=-1.0)
    with pytest.raises(ValueError, match="no reward column 'other'"):
        dr_irl_proposed(x, torch.zeros(2), similarity="other")


def test_demonstration_match_proposed_by_hand():
    # "a b" against "a b" is 1; "a c" against "a b" is 1/2: the mean is 3/4
    assert match("a b. a c.", "a b. d e.") == pytest.approx(0.75)
    assert match("<think></think>", "a b") == 0.0
    assert match("a", "") is None
    mine = group(["the ball rolls", "nothing"], of=dataclasses.replace(sample(), thought="The ball rolls."))
    assert demonstration_match_proposed(mine, RewardContext()) == pytest.approx([1.0, 0.0])
    assert demonstration_match_proposed(group(["x"]), RewardContext()) == [None]
