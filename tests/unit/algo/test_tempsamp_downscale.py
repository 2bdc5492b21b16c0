"""algo.reward_shaping.tempsamp_downscale."""

from __future__ import annotations

import torch

from tests.support.builders import inputs
from vlmrl.algo.reward_shaping.tempsamp import tempsamp_downscale


def test_tempsamp_downscale():
    x = inputs([(0.5, 0, True), (1.0, 0, True), (1.0, 0, True)], off_policy=[2])
    assert tempsamp_downscale(x.rewards_NK, x.valid_N, x, reward="task").tolist() == [[0.5], [1.0], [0.8]]
    assert tempsamp_downscale(x.rewards_NK, x.valid_N, x, reward="task", factor=0.5, maximum=4.0).tolist() == [[0.5], [1.0], [2.0]]


def test_an_unjudged_ground_truth_row_stays_unjudged():
    x = inputs([(0.5, 0, True), (1.0, 0, False)], off_policy=[1])
    out = tempsamp_downscale(x.rewards_NK, x.valid_N, x, reward="task")[:, 0]
    assert out[0] == 0.5
    assert torch.isnan(out[1])
