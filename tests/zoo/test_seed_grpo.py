"""algo.advantage.seed_grpo: entropies and factors computed by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.advantage.seed_grpo import count_entropy, likelihood_entropy, seed_grpo


def i64(values):
    return torch.tensor(values, dtype=torch.int64)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def given_answers(rewards, answers, off_policy=(), **more):
    x = inputs([(r, 0, r == r) for r in rewards], off_policy=off_policy)
    return dataclasses.replace(x, answer_N=i64(answers), **more)


def test_entropies_of_the_example():
    clusters, logp = i64([0, 0, 1, 2]), f64([-2, -2.5, -3, -2.2])
    assert count_entropy(clusters) == pytest.approx(1.0397, abs=1e-4)
    assert likelihood_entropy(clusters, logp) == pytest.approx(1.2691, abs=1e-4)
    mass = [math.exp(-2) + math.exp(-2.5), math.exp(-3), math.exp(-2.2)]
    assert [m / sum(mass) for m in mass] == pytest.approx([0.5752, 0.1317, 0.2931], abs=1e-4)


def test_likelihood_entropy_does_not_underflow():
    assert likelihood_entropy(i64([0, 1]), f64([-5000.0, -5000.0])) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [
        ({}, 0.25),
        ({"alpha": 0.5}, 1 - 0.375),
        ({"form": "exponential"}, math.exp(-0.75)),
        ({"form": "focal"}, 0.25),
        ({"form": "focal", "alpha": 2.0}, 0.0625),
        ({"entropy": "likelihood"}, 1 - 1.2691 / math.log(4)),
    ],
)
def test_seed_grpo(arguments, factor):
    x = given_answers([1, 1, 0, 0], [0, 0, 1, 2], logp_N=f64([-2, -2.5, -3, -2.2]))
    assert seed_grpo(x, **arguments).tolist() == pytest.approx([0.5 * factor] * 2 + [-0.5 * factor] * 2, abs=5e-5)


def test_one_answer_is_the_centred_reward_and_all_different_is_zero():
    assert seed_grpo(given_answers([1, 0, 0, 0], [3] * 4)).tolist() == [0.75, -0.25, -0.25, -0.25]
    assert seed_grpo(given_answers([1, 0, 0], [0, 1, 2])).tolist() == [0.0, 0.0, 0.0]


def test_unparsed_answers_are_one_cluster_or_one_each():
    x = given_answers([1, 0, 0, 0], [0, -1, -1, -1])
    together = 1 - count_entropy(i64([0, 1, 1, 1])) / math.log(4)
    assert seed_grpo(x)[0].item() == pytest.approx(0.75 * together)
    assert seed_grpo(x, unparsed="each").tolist() == [0.0] * 4


def test_rows_that_were_not_sampled_are_not_the_policys_doubt():
    x = given_answers([1, 0, 1], [0, 0, 7], off_policy=[2])
    torch.testing.assert_close(seed_grpo(x), f64([1, -2, 1]) / 3)


def test_unjudged_rows_do_not_count():
    x = given_answers([1, 0, float("nan")], [0, 0, 7])
    assert seed_grpo(x).tolist() == [0.5, -0.5, 0.0]


@given(
    clusters=st.lists(st.integers(-1, 3), min_size=2, max_size=8),
    form=st.sampled_from(["linear", "exponential", "focal"]),
    alpha=st.floats(0, 3),
)
def test_the_factor_is_a_share_of_one_that_falls_with_entropy(clusters, form, alpha):
    rewards = [1.0] + [0.0] * (len(clusters) - 1)
    plain = 1 - 1 / len(clusters)
    factor = float(seed_grpo(given_answers(rewards, clusters), form=form, alpha=alpha)[0]) / plain
    assert 0 <= factor <= 1 + 1e-12
    unanimous = float(seed_grpo(given_answers(rewards, [0] * len(clusters)), form=form, alpha=alpha)[0]) / plain
    assert factor <= unanimous == pytest.approx(1)
    merged = [0 if c == 1 else c for c in clusters]
    assert factor <= float(seed_grpo(given_answers(rewards, merged), form=form, alpha=alpha)[0]) / plain + 1e-9


def test_what_is_missing_or_wrong_is_said():
    x = given_answers([1, 0], [0, 1])
    with pytest.raises(ValueError, match="'seed_grpo' needs answer_N"):
        seed_grpo(dataclasses.replace(x, answer_N=None))
    with pytest.raises(ValueError, match="'likelihood' needs logp_N"):
        seed_grpo(x, entropy="likelihood")
    with pytest.raises(ValueError, match="alpha is -1"):
        seed_grpo(x, alpha=-1.0)
