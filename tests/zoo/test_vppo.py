"""Reweightings `vppo` and `vppo_tokens`."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.vppo import vppo, vppo_tokens

LN2, LN3, LN4 = math.log(2), math.log(3), math.log(4)
NAN = math.nan


def of(gaps, valid=None):
    """Answers whose tokens become likelier by these log-ratios where the media are masked; NaN: no media."""
    width = max(map(len, gaps))
    masked = torch.tensor([[-1.0 + gap for gap in row] + [99.0] * (width - len(row)) for row in gaps])
    x = inputs([(1.0, 0, valid is None or valid[n]) for n in range(len(gaps))])
    logp = torch.full((len(gaps), width), -1.0)
    return dataclasses.replace(x, logp_NT=logp, masked_logp_NT=masked, length_N=torch.tensor([len(row) for row in gaps]))


def test_vppo_by_hand():
    """Mean dependencies 0, s and s/2: normalised 0, 1 and 1/2, whose mean is 1/2, so the largest weight is 0.9 + 0.1 / 0.5."""
    x = of([[0.0, 0.0], [LN2, LN2], [LN2, 0.0]])
    out = vppo(x, torch.tensor([2.0, -1.0, 1.0], dtype=torch.float64))
    assert out.tolist() == pytest.approx([1.8, -1.1, 1.0], abs=1e-6)


def test_what_has_no_media_or_no_judgement_is_in_no_statistic():
    """Without the third and the fourth, the weights are 0.8 and 0.8 + 0.2 / 0.5."""
    x = of([[0.0], [LN2], [NAN, NAN], [LN4 * 2]], valid=[True, True, True, False])
    out = vppo(x, torch.tensor([1.0, 1.0, 3.0, 0.0], dtype=torch.float64), least=0.8)
    assert out.tolist() == pytest.approx([0.8, 1.2, 3.0, 0.0], abs=1e-6)


def test_answers_that_depend_alike_weigh_alike():
    adv = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert torch.equal(vppo(of([[LN2], [LN2, LN2]]), adv), adv)
    assert torch.equal(vppo(of([[NAN], [NAN]]), adv), adv)


def test_vppo_tokens_by_hand():
    """Of five tokens two stay, of one one, of three ceil(1.2) = 2; the first of equals; a row without media stays whole."""
    x = of([[0.0, LN2, LN3, 0.0, LN4], [0.0], [0.0, 0.0, 0.0], [NAN, NAN]])
    out = vppo_tokens(x, torch.full((4, 5), -2.0))
    assert out[0].tolist() == [0.0, 0.0, -2.0, 0.0, -2.0]
    assert out[1, :1].tolist() == [-2.0]
    assert out[2, :3].tolist() == [-2.0, -2.0, 0.0]
    assert out[3, :2].tolist() == [-2.0, -2.0]


def test_a_token_that_became_unlikely_depends_on_the_picture_too():
    """exp(d) - d - 1 is 0.31 at d = ln 2, and 0.64 at -ln 4."""
    assert vppo_tokens(of([[LN2, -LN4]]), torch.ones(1, 2), top=0.5).tolist() == [[0.0, 1.0]]


def test_vppo_tokens_keeps_all_with_top_1():
    adv = torch.ones(1, 3)
    assert torch.equal(vppo_tokens(of([[0.0, LN2, LN3]]), adv, top=1.0), adv)


def test_they_say_what_is_wrong():
    x = of([[0.0]])
    with pytest.raises(ValueError, match="'vppo': least is"):
        vppo(x, torch.ones(1), least=1.5)
    with pytest.raises(ValueError, match="'vppo_tokens': top is 0"):
        vppo_tokens(x, torch.ones(1, 1), top=0)
    with pytest.raises(ValueError, match="reweight 'vppo' needs masked_logp_NT"):
        vppo(dataclasses.replace(x, provided={"logp_NT": torch.zeros(1, 1)}), torch.ones(1))
