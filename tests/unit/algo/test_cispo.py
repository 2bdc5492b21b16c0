"""algo.loss.cispo."""

from __future__ import annotations

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs, metric
from vlmrl.algo.loss.cispo import cispo

GRID = [[(0.1, 1.0), (1.0, -2.0), (4.0, 1.0), (9.0, -1.0), (9.0, 1.0)]]


def test_cispo_weights_every_token_by_its_clipped_ratio():
    assert coefficients(cispo, loss_inputs(GRID)) == [pytest.approx([0.1, -2.0, 4.0, -5.0, 5.0])]
    bounded = coefficients(cispo, loss_inputs(GRID), ratio_min=0.8, ratio_max=1.2)
    assert bounded == [pytest.approx([0.8, -2.0, 1.2, -1.2, 1.2])]


def test_cispo_metrics_count_what_was_cut_whatever_the_sign():
    assert metric(cispo, loss_inputs(GRID), "clip_ratio/high") == (2, 5)
    assert metric(cispo, loss_inputs(GRID), "clip_ratio/low", ratio_min=0.8) == (1, 5)
    assert metric(cispo, loss_inputs(GRID), "ratio/mean") == (pytest.approx(23.1), 5)


def test_cispo_gradient_does_not_depend_on_the_level_of_the_log_probs():
    shifted = loss_inputs(GRID, [[-7.0, -3.0, -0.5, -20.0, -1.0]])
    assert coefficients(cispo, shifted)[0] == pytest.approx(coefficients(cispo, loss_inputs(GRID))[0], rel=1e-9)


def test_cispo_keeps_the_gradient_where_the_log_ratio_is_clamped():
    x = loss_inputs([[(1.0, 1.0)]])
    far = type(x)(**{**vars(x), "logp_old_BT": torch.tensor([[-90.0]], dtype=torch.float64)})
    assert coefficients(cispo, far) == [[5.0]]


@pytest.mark.parametrize("bounds", [(-0.1, 2.0), (1.1, 2.0), (0.5, 0.9)])
def test_cispo_refuses_distances_in_place_of_ratios(bounds):
    with pytest.raises(ValueError, match="0 <= min <= 1 <= max"):
        cispo(loss_inputs(GRID), ratio_min=bounds[0], ratio_max=bounds[1])
