"""Reweighting `pgpo`."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.pgpo import pgpo

LN2, LN3 = math.log(2), math.log(3)
NAN = math.nan


def of(gaps):
    """Answers whose tokens become likelier by these log-ratios without the media; NaN: there are none."""
    width = max(map(len, gaps))
    unseen = torch.tensor([[-1.0 + gap for gap in row] + [NAN] * (width - len(row)) for row in gaps])
    x = inputs([(1.0, 0, True)] * len(gaps))
    logp = torch.full((len(gaps), width), -1.0)
    return dataclasses.replace(x, logp_NT=logp, unseen_logp_NT=unseen, length_N=torch.tensor([len(row) for row in gaps]))


def test_pgpo_by_hand():
    """S is 0, 1 - ln 2 and 2 - ln 3; I = log(1 + S) over its largest is 0, 0.4165 and 1; w is 0, 1 + 2 * 0.0165 / 0.6 and 3."""
    middle = math.log(2 - LN2) / math.log(3 - LN3)
    weights = [0.0, 1 + 2 * (middle - 0.4) / 0.6, 3.0]
    assert weights[1] == pytest.approx(1.054928, abs=1e-5)
    out = pgpo(of([[0.0, LN2, LN3]]), torch.full((1, 3), -2.0))
    assert out[0].tolist() == pytest.approx([-2 * 3 * w / sum(weights) for w in weights], abs=1e-5)
    assert float(out.sum()) == pytest.approx(-6.0)


def test_below_the_threshold_the_weight_is_its_share():
    """With tau 0.8 the middle weighs 0.4165 / 0.8, the last 1 + boost."""
    middle = math.log(2 - LN2) / math.log(3 - LN3)
    out = pgpo(of([[0.0, LN2, LN3]]), torch.ones(1, 3), threshold=0.8, boost=1.0)[0].tolist()
    assert out[1] / out[2] == pytest.approx(middle / 0.8 / 2)
    assert sum(out) == pytest.approx(3.0)


def test_each_answer_by_itself():
    """Equal tokens, one token and no media leave an answer as it is; what stands behind an answer moves nothing."""
    x = of([[LN2, LN2], [0.0, LN3, 0.0], [LN2], [NAN, NAN]])
    out = pgpo(x, torch.full((4, 3), 2.0))
    assert out[0, :2].tolist() == [2.0, 2.0]
    assert out[1].tolist() == pytest.approx([0.0, 6.0, 0.0])
    assert out[2, :1].tolist() == [2.0]
    assert out[3, :2].tolist() == [2.0, 2.0]


def test_pgpo_says_what_is_wrong():
    for wrong in ({"threshold": 0.0}, {"threshold": 1.0}, {"boost": -1.0}):
        with pytest.raises(ValueError, match="reweight 'pgpo': needs threshold"):
            pgpo(of([[0.0]]), torch.ones(1, 1), **wrong)
    with pytest.raises(ValueError, match="needs unseen_logp_NT"):
        pgpo(dataclasses.replace(of([[0.0]]), provided={"logp_NT": torch.zeros(1, 1)}), torch.ones(1, 1))
