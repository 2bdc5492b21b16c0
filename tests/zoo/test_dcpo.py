"""Reweighting `dcpo`: towards a warmer or cooler policy, in right answers."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.dcpo import dcpo

LOGITS = torch.tensor([2.0, 1.0, 0.0])


def of(rewards, log_ratio, entropy):
    x = inputs([(r, 0, True) for r in rewards])
    provided = {"tempered_NT": log_ratio, "batch_entropy_N": torch.full((len(rewards),), entropy, dtype=torch.float64)}
    return dataclasses.replace(x, provided=provided)


def tempered(temperature: float) -> torch.Tensor:
    return (LOGITS / temperature).log_softmax(0) - LOGITS.log_softmax(0)


def test_dcpo_numbers_of_the_authors_code():
    u = tempered(1.2)
    assert u.exp().tolist() == pytest.approx([0.9259, 1.0939, 1.2922], abs=1e-4)
    x = of([1.0, 0.0], u.repeat(2, 1), 0.1)
    out = dcpo(x, torch.tensor([[1.0] * 3, [-1.0] * 3], dtype=torch.float64))
    assert out[0].tolist() == pytest.approx([0.9877, 1.0156, 1.0487], abs=1e-4)
    assert out[1].tolist() == pytest.approx([-5 / 6] * 3), "wrong answers only lose a share"


def test_dcpo_adds_nothing_on_average():
    for temperature in (0.8, 1.2):
        assert float((LOGITS.softmax(0) * tempered(temperature).exp()).sum()) == pytest.approx(1.0)


def test_dcpo_at_the_target_or_without_a_right_answer_changes_nothing():
    adv = torch.tensor([[1.0, 2.0, 3.0]] * 2, dtype=torch.float64)
    assert torch.equal(dcpo(of([1.0, 0.0], tempered(1.2).repeat(2, 1), 0.5), adv), adv)
    assert torch.equal(dcpo(of([0.0, 0.05], tempered(1.2).repeat(2, 1), 0.1), adv), adv)


def test_dcpo_refuses_temperatures_on_one_side():
    with pytest.raises(ValueError, match=r"cooler 1\.1"):
        dcpo(of([1.0], tempered(1.2)[None], 0.1), torch.ones(1, 3, dtype=torch.float64), cooler=1.1)
