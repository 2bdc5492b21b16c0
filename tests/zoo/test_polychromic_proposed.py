"""Advantage `polychromic_proposed`: sets that are right and diverse."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.advantage.polychromic_proposed import polychromic_proposed, set_scores


def of(rewards, answers):
    return dataclasses.replace(inputs([(r, 0, True) for r in rewards]), answer_N=torch.tensor(answers))


def test_polychromic_proposed_by_hand():
    # pairs of R [1,1,0,0] with answers [0,1,1,0]: f = 1, .5, .25, .25, .5, 0, mean 2.5 / 6
    out = polychromic_proposed(of([1.0, 1.0, 0.0, 0.0], [0, 1, 1, 0]), size=2)
    b = 2.5 / 6
    assert out.tolist() == pytest.approx([1.75 / 3 - b, 1.75 / 3 - b, 0.75 / 3 - b, 0.75 / 3 - b])


def test_set_scores_of_the_spec():
    members, score = set_scores(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 1, 1, 0]), 2)
    by_set = {tuple(m): f for m, f in zip(members.tolist(), score.tolist(), strict=True)}
    assert [by_set[s] for s in ((0, 1), (0, 3), (1, 2), (2, 3))] == [1, 0.25, 0.25, 0]


def test_polychromic_proposed_equals_a_slow_reference():
    torch.manual_seed(0)
    rewards, answers = torch.rand(7).tolist(), [0, 0, 1, 2, -1, -1, 2]
    keys = [a if a >= 0 else f"own{i}" for i, a in enumerate(answers)]
    sets = list(itertools.combinations(range(7), 3))
    f = {s: sum(rewards[i] for i in s) / 3 * len({keys[i] for i in s}) / 3 for s in sets}
    wanted = [sum(f[s] for s in sets if i in s) / sum(i in s for s in sets) - sum(f.values()) / len(sets) for i in range(7)]
    assert polychromic_proposed(of(rewards, answers), size=3).tolist() == pytest.approx(wanted, abs=1e-6)


def test_polychromic_proposed_prefers_the_rare_right_answer():
    out = polychromic_proposed(of([1.0, 1.0, 1.0, 1.0], [0, 0, 0, 1]), size=2)
    assert out[3] > 0 > out[0]
    assert polychromic_proposed(of([1.0] * 4, [0] * 4), size=2).tolist() == [0.0] * 4


def test_polychromic_proposed_of_one_member_is_the_reward_less_its_mean():
    assert polychromic_proposed(of([1.0, 0.0, 0.0, 1.0], [0, 0, 0, 0]), size=1).tolist() == [0.5, -0.5, -0.5, 0.5]
    with pytest.raises(ValueError, match="size is 0"):
        polychromic_proposed(of([1.0], [0]), size=0)
    with pytest.raises(ValueError, match="at most 100000"):
        polychromic_proposed(of([1.0] * 64, [0] * 64), size=8)
