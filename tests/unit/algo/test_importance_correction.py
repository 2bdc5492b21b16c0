"""algo.importance_correction: weights for a sampler whose log-probs differ from the trainer's."""

from __future__ import annotations

import math

import pytest
import torch

from vlmrl.algo import registries
from vlmrl.algo.importance_correction.corrections import icepop, mis, none, sequence, tis

NAN = float("nan")
CORRECTIONS = {"icepop": icepop, "mis": mis, "none": none, "sequence": sequence, "tis": tis}


def row(ratios, mask=None, dtype=torch.float64):
    """(logp_old, logp_sampled, mask) of one answer with these ratios; NaN: not sampled."""
    old = torch.full((1, len(ratios)), -2.0, dtype=dtype)
    gap = torch.tensor([[math.log(r) if r == r else NAN for r in ratios]], dtype=dtype)
    return old, old - gap, torch.ones(1, len(ratios), dtype=torch.bool) if mask is None else torch.tensor([mask])


def numbers(found):
    return {name: (float(a), float(b)) for name, (a, b) in found[1].items()}


def test_all_are_registered():
    assert set(CORRECTIONS) <= set(registries.importance_correction.names())


def test_tis():
    found = tis(*row([0.3, 1.0, 2.5]))
    assert found[0][0].tolist() == pytest.approx([0.3, 1.0, 2.0])
    assert numbers(found) == {
        "importance_correction/weight": (pytest.approx(3.3), 3),
        "importance_correction/changed": (1, 3),
        "importance_correction/masked": (0, 3),
    }
    assert tis(*row([0.3, 1.0, 2.5]), ratio_min=0.5, ratio_max=1.5)[0][0].tolist() == pytest.approx([0.5, 1.0, 1.5])


def test_mis_per_token():
    found = mis(*row([0.3, 1.0, 2.5]), level="token", ratio_min=0.5, ratio_max=2.0)
    assert found[0][0].tolist() == pytest.approx([0.0, 1.0, 0.0])
    assert numbers(found)["importance_correction/masked"] == (2, 3)


def test_mis_drops_whole_answers():
    assert mis(*row([1.5, 1.5]))[0][0].tolist() == pytest.approx([2.25, 2.25])
    assert mis(*row([2.0, 2.0]))[0][0].tolist() == [0.0, 0.0]


def test_mis_on_a_long_answer_whose_tokens_are_nearly_perfect():
    """0.001 per token over 2000 tokens is a weight of 7.39: the answer is dropped, while each token alone is kept."""
    long = row([math.exp(0.001)] * 2000)
    assert float(sequence(*long, ratio_max=10.0)[0][0, 0]) == pytest.approx(math.exp(2), rel=1e-9)
    assert float(mis(*long)[0].sum()) == 0.0
    assert float(mis(*long, level="token")[0].mean()) == pytest.approx(1.001, abs=1e-5)


def test_icepop():
    assert icepop(*row([0.3, 0.6, 1.0, 2.5]))[0][0].tolist() == pytest.approx([0.0, 0.6, 1.0, 0.0])
    assert icepop(*row([0.3, 2.5]), alpha=0.25, beta=4.0)[0][0].tolist() == pytest.approx([0.3, 2.5])


def test_sequence():
    assert sequence(*row([2.0, 1.25, 0.5]))[0][0].tolist() == pytest.approx([1.25] * 3)
    assert sequence(*row([2.0, 2.0]))[0][0].tolist() == [3.0, 3.0]
    assert sequence(*row([0.1, 0.1]), ratio_min=0.5)[0][0].tolist() == [0.5, 0.5]


def test_none():
    weight, metrics = none(*row([0.3, 2.5]))
    assert weight.tolist() == [[1.0, 1.0]]
    assert metrics == {}


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_equal_log_probs_give_weight_1(name):
    weight, metrics = CORRECTIONS[name](*row([1.0, 1.0, 1.0]))
    assert weight.tolist() == [[1.0, 1.0, 1.0]]
    assert all(float(metrics[k][0]) == 0 for k in metrics if k != "importance_correction/weight")


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_tokens_that_were_not_sampled_or_do_not_train_get_1_and_enter_no_sum(name):
    old, sampled, mask = row([NAN, 1.2, 9.0, 1.1], [True, True, False, True])
    old[0, 2], sampled[0, 2] = NAN, 1e30
    weight, metrics = CORRECTIONS[name](old, sampled, mask)
    alone, _ = CORRECTIONS[name](*row([1.2, 1.1]))
    assert weight[0].tolist() == pytest.approx([1.0, float(alone[0, 0]), 1.0, float(alone[0, 1])])
    assert all(float(count) == 2 for _, count in metrics.values())


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_a_row_without_a_single_sampled_token_and_an_empty_batch(name):
    weight, _ = CORRECTIONS[name](*row([NAN, NAN]))
    assert weight.tolist() == [[1.0, 1.0]]
    empty = torch.zeros(0, 3)
    assert CORRECTIONS[name](empty, empty, empty > 0)[0].shape == (0, 3)


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_are_finite_far_away_and_carry_no_gradient(name, dtype):
    old = torch.tensor([[-100.0, -20.0, -1.0]], dtype=dtype, requires_grad=True)
    sampled = torch.tensor([[-20.0, -100.0, float("-inf")]], dtype=torch.float32)
    weight, metrics = CORRECTIONS[name](old, sampled, torch.ones(1, 3, dtype=torch.bool))
    assert weight.dtype == dtype
    assert weight.isfinite().all()
    assert not weight.requires_grad
    assert not any(t.requires_grad for pair in metrics.values() for t in pair)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("tis", {"ratio_max": 0.5}), ("mis", {"ratio_min": 1.5}), ("icepop", {"alpha": -1.0}), ("sequence", {"ratio_min": -1.0})],
)
def test_bounds_that_exclude_1_are_refused(name, arguments):
    with pytest.raises(ValueError, match=f"importance_correction '{name}'"):
        registries.importance_correction.bind(name, arguments)(*row([1.0]))
