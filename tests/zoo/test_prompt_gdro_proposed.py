"""Reweighting `prompt_gdro_proposed`: bins of difficulty that go badly weigh more."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.prompt_gdro_proposed import prompt_gdro_proposed, update, weights

NAN = float("nan")


def of(rows, memory=None):
    """(reward, remembered value) of rollouts, each of a group of its own."""
    x = inputs([(r, g, True) for g, (r, _) in enumerate(rows)])
    baseline = torch.tensor([v for _, v in rows], dtype=torch.float64)
    held = {name: torch.tensor(value, dtype=torch.float64) for name, value in (memory or {}).items()}
    return dataclasses.replace(x, baseline_N=baseline, memory=held)


def test_weights_of_the_authors_code():
    w = weights(torch.tensor([0.2, 0.5, 0.1], dtype=torch.float64), 0.65, 0.01)
    assert w.tolist() == pytest.approx([0.3174, 0.3850, 0.2976], abs=1e-4)
    assert float(w.sum()) == pytest.approx(1.0)


def test_prompt_gdro_proposed_weighs_bins_by_their_running_failure():
    x = of([(0.0, 0.1), (1.0, 0.5), (1.0, 0.9), (1.0, NAN)], memory={"0": [0.2], "1": [0.5], "2": [0.1]})
    out = prompt_gdro_proposed(x, torch.ones(4, dtype=torch.float64), rate=1e-9)
    assert out.tolist() == pytest.approx([0.952, 1.155, 0.893, 1.0], abs=1e-3)


def test_prompt_gdro_proposed_learns_means_and_not_counts():
    x = of([(0.0, 0.1)] * 5 + [(0.0, 0.9)])
    first = update({}, x)
    assert first == {"0": [1.0], "2": [1.0]}, "coming often is no reason to weigh more"
    assert update(first, of([(1.0, 0.1)]))["0"] == pytest.approx([0.88])
    assert prompt_gdro_proposed(x, torch.ones(6, dtype=torch.float64)).tolist() == pytest.approx([1.0] * 6)


def test_prompt_gdro_proposed_without_a_seen_prompt_changes_nothing():
    adv = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert torch.equal(prompt_gdro_proposed(of([(1.0, NAN), (0.0, NAN)]), adv), adv)


def test_prompt_gdro_proposed_refuses():
    with pytest.raises(ValueError, match="rising edges"):
        prompt_gdro_proposed(of([(1.0, 0.5)]), torch.ones(1), edges=(0.5, 0.4))
    with pytest.raises(ValueError, match="memory"):
        prompt_gdro_proposed(dataclasses.replace(of([(1.0, 0.5)]), memory=None), torch.ones(1))
