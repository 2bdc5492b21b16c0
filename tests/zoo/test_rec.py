"""algo.loss.rec."""

from __future__ import annotations

import pytest

from tests.support.losses import coefficients, loss_inputs
from vlmrl.zoo.loss.rec import rec


def test_rec_masks_what_ppo_clips():
    x = loss_inputs([[(1.0, 1.0), (1.5, 1.0), (0.5, 1.0), (1.5, -1.0), (0.5, -1.0)]])
    assert coefficients(rec, x) == [[1.0, 0.0, 1.0, -1.0, 0.0]]
    assert coefficients(rec, x, clip_low=0.6, clip_high=2.0) == [[1.0, 1.0, 1.0, -1.0, -1.0]]


def test_rec_without_bounds_is_reinforce():
    x = loss_inputs([[(9.0, 2.0), (0.01, -3.0)]])
    assert coefficients(rec, x, clip_low=1.0, clip_high=1e9) == [[2.0, -3.0]]


def test_rec_refuses_bounds_on_the_wrong_side():
    with pytest.raises(ValueError, match="rec"):
        rec(loss_inputs([[(1.0, 1.0)]]), clip_high=-0.1)
