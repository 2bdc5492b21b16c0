"""Reward `role_diversity_proposed`."""

from __future__ import annotations

import pytest

from tests.support.builders import group
from vlmrl.protocols import RewardContext
from vlmrl.rewards.role_diversity_proposed import role_diversity_proposed, roles, scaled, signals

CTX = RewardContext()


def answer(thought, text):
    return f"<think>{thought}</think><answer>{text}</answer>"


def test_roles_are_counted_once():
    assert roles("As a nurse I care. From the perspective of the owner, no; as a Nurse, yes. As an ex-pilot.") == {
        "nurse",
        "owner",
        "ex-pilot",
    }
    assert roles("It has a nurse.") == set()
    assert signals("as a nurse as a") == (1.0, pytest.approx(3 / 5), pytest.approx(3 / 4))


def test_role_diversity_proposed_by_hand():
    right = "3.0 to 5.0"
    texts = [answer("as a nurse", right), answer("as a a a", right), answer("as a nurse, as a cook", "x")]
    # roles 1, 0, 2; words 1, 1/2, 2/3; pairs 1, 2/3, 4/5
    first = (0.5 + 1 + 1) / 3
    assert role_diversity_proposed(group(texts), CTX) == pytest.approx([0.9 + 0.1 * first, 0.9, 0.0])
    last = (1 + 1 / 3 + (4 / 5 - 2 / 3) / (1 / 3)) / 3
    assert role_diversity_proposed(group(texts), CTX, gated=False)[2] == pytest.approx(0.1 * last)
    assert scaled([0.4, 0.4]) == [0.0, 0.0]


def test_a_right_answer_is_worth_more_than_any_wrong_one():
    with pytest.raises(ValueError, match="delta"):
        role_diversity_proposed(group(["x"]), CTX, delta=0.5)
