"""algo.advantage.g2rpo against the vectors of arXiv:2604.08539 and the standard library's normal quantiles."""

from __future__ import annotations

from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.g2rpo import g2rpo, psi

QUANTILE = NormalDist().inv_cdf
VALUES = st.lists(st.integers(-4, 4), min_size=1, max_size=10)


def f64(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(*groups):
    return [(float(v), g, True) for g, values in enumerate(groups) for v in values]


def reference(values: list[float]) -> list[float]:
    """Mean over the rank block of each value, the slow way."""
    n = len(values)
    ordered = sorted(values)
    blocks = {v: [QUANTILE((r + 0.5) / n) for r in range(n) if ordered[r] == v] for v in values}
    return [sum(blocks[v]) / len(blocks[v]) for v in values]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0, 0, 0, 0, 1], [-0.3204] * 4 + [1.2816]),
        ([0, 0, 1, 1, 1], [-0.9030] * 2 + [0.6020] * 3),
        ([0.1, 0.1, 0.1, 0.2, 1.0], [-0.6020] * 3 + [0.5244, 1.2816]),
        ([0.81, 0.81, 0.82, 0.82, 0.83], [-0.9030] * 2 + [0.2622] * 2 + [1.2816]),
        ([0, 1], [-0.6745, 0.6745]),
        ([0, 0, 1, 1], [-0.7345] * 2 + [0.7345] * 2),
        ([4, 1, 3, 2], [1.1503, -1.1503, 0.3186, -0.3186]),
        ([1, 2, 3, 4, 5, 6, 7, 8], [-1.5341, -0.8871, -0.4888, -0.1573, 0.1573, 0.4888, 0.8871, 1.5341]),
        ([0] * 7 + [1], [-0.2192] * 7 + [1.5341]),
        ([0] * 6 + [1] * 2, [-0.4035] * 6 + [1.2106] * 2),
        ([0] * 5 + [1] * 3, [-0.5820] * 5 + [0.9700] * 3),
        ([0] * 4 + [1] * 4, [-0.7668] * 4 + [0.7668] * 4),
    ],
)
def test_g2rpo_of_one_group(rewards, expected):
    for out in (psi(f64(rewards)), g2rpo(inputs(rows(rewards)), stages="group"), g2rpo(inputs(rows(rewards)))):
        torch.testing.assert_close(out, f64(expected), rtol=0, atol=6e-5)


@pytest.mark.parametrize(("n", "square"), [(2, 0.455), (4, 0.712), (5, 0.767), (8, 0.851), (16, 0.924), (64, 0.980), (1024, 0.999)])
def test_variance_of_small_groups(n, square):
    assert float(psi(torch.arange(n, dtype=torch.float64)).square().mean()) == pytest.approx(square, abs=5e-4)


@given(values=VALUES)
def test_psi_equals_the_slow_way_and_is_antisymmetric_and_bounded(values):
    scores = f64(values)
    out = psi(scores)
    if len(set(values)) == 1:
        assert out.tolist() == [0.0] * len(values)
        return
    torch.testing.assert_close(out, f64(reference(values)), rtol=0, atol=1e-9)
    torch.testing.assert_close(psi(-scores), -out, rtol=0, atol=1e-12)
    assert abs(float(out.sum())) < 1e-9
    assert float(out.abs().max()) <= QUANTILE(1 - 0.5 / len(values)) + 1e-12


@given(values=VALUES)
def test_only_ranks_count(values):
    torch.testing.assert_close(g2rpo(inputs(rows([2.0**v for v in values]))), g2rpo(inputs(rows(values))), rtol=0, atol=1e-12)


def test_a_group_without_signal_gets_exactly_zero_and_moves_nobody():
    with_flat = g2rpo(inputs(rows([0, 0, 0, 0, 1], [1] * 5, [0, 0, 1, 1, 1]), tasks=[0] * 15))
    without = g2rpo(inputs(rows([0, 0, 0, 0, 1], [0, 0, 1, 1, 1]), tasks=[0] * 10))
    assert with_flat[5:10].tolist() == [0.0] * 5
    torch.testing.assert_close(with_flat[[0, 1, 2, 3, 4, 10, 11, 12, 13, 14]], without)
    # second stage of ten: blocks -0.903 (2), -0.320 (4), 0.602 (3), 1.282 (1)
    torch.testing.assert_close(without, f64(reference([-0.32] * 4 + [1.28] + [-0.9] * 2 + [0.6] * 3)), rtol=0, atol=1e-9)


def test_equal_patterns_of_different_groups_tie_whatever_their_scale():
    out = g2rpo(inputs(rows([0.1, 0.7, 0.3], [10, 3000, 20]), tasks=[0] * 6))
    assert out[:3].tolist() == out[3:].tolist()


def test_tasks_with_the_same_group_shapes_get_the_same_advantages():
    small, large = [[0, 0, 1], [0.2, 0.4, 0.4]], [[-50, -50, 900], [7, 8, 8]]
    out = g2rpo(inputs(rows(*small, *large), tasks=[0] * 6 + [1] * 6))
    assert sorted(out[:6].tolist()) == sorted(out[6:].tolist())
    assert float(out[:6].mean()) == pytest.approx(0, abs=1e-12)


def test_stage_task_ranks_across_prompts():
    out = g2rpo(inputs(rows([0, 1], [2, 3]), tasks=[0] * 4), stages="task")
    torch.testing.assert_close(out, f64([-1.1503, -0.3186, 0.3186, 1.1503]), rtol=0, atol=6e-5)


def test_tie_tol_is_in_units_of_the_reward():
    x = inputs(rows([0.50, 0.505, 0.9, 1.0]))
    torch.testing.assert_close(g2rpo(x, tie_tol=0.01), psi(f64([0, 0, 1, 2])))
    assert len(set(g2rpo(x).tolist())) == 4


def test_a_group_that_ties_altogether_within_tie_tol_has_no_signal():
    out = g2rpo(inputs(rows([0.50, 0.505], [0.0, 1.0, 1.0]), tasks=[0] * 5), tie_tol=0.01)
    assert out[:2].tolist() == [0.0, 0.0]
    torch.testing.assert_close(out[2:], psi(f64([0, 1, 1])))
