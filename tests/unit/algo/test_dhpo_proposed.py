"""algo.loss.dhpo_proposed."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs
from vlmrl.algo.loss.dhpo_proposed import dhpo_proposed, token_share
from vlmrl.algo.loss.gspo import gspo
from vlmrl.algo.loss.ppo_clip import ppo_clip

ROW = [(math.exp(0.3), 1.0), (math.exp(-0.1), 1.0)]


def test_dhpo_proposed_clips_before_it_mixes():
    # rho = 1.3499, .9048 and s = 1.1052: clipped 1.28 with 1.1, and .9048 with 1.1
    x = loss_inputs([ROW])
    loss = dhpo_proposed(x, row_clip_low=0.1, row_clip_high=0.1).loss_BT
    assert (-loss[0]).tolist() == pytest.approx([1.19, 1.0024], abs=1e-4)
    # the token's branch is clipped for the first, the answer's for both
    assert coefficients(dhpo_proposed, x, row_clip_low=0.1, row_clip_high=0.1)[0] == pytest.approx([0.0, 0.4524], abs=1e-4)


def test_dhpo_proposed_mixes_by_entropy():
    x = loss_inputs([ROW, [(1.0, -1.0)]], entropy_BT=torch.tensor([[2.0, 0.5], [0.0, 99.0]]))
    assert token_share(x, x.need("entropy_BT", "dhpo_proposed")).tolist() == [[1.0, 0.25], [0.0, 0.0]]
    loss = dhpo_proposed(x, mix="entropy").loss_BT
    first = ppo_clip(x, clip_high=0.28).loss_BT[0, 0]
    assert loss[0, 0] == first
    assert loss[1, 0] == gspo(x).loss_BT[1, 0]


def test_dhpo_proposed_names_what_is_missing():
    with pytest.raises(ValueError, match="entropy_BT"):
        dhpo_proposed(loss_inputs([ROW]), mix="entropy")
