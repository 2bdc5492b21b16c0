"""Shaping `scope_proposed`: votes by confidence, and labels of parts of the group."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.providers.paragraphs import paragraphs
from vlmrl.zoo.reward_shaping.scope_proposed import confidence, labels, part_size, scope_proposed, weighted_vote


def test_confidence_is_a_mean_over_paragraphs():
    half = math.log(2)
    entropy = torch.tensor([[0.0, 0.0, half, half, 9.0], [half, 9.0, 9.0, 9.0, 9.0]])
    number = torch.tensor([[0, 0, 0, 1, 7], [0, 0, 0, 0, 0]])
    found = confidence(entropy, number, torch.tensor([4, 1]))
    assert found.tolist() == pytest.approx([(2.5 / 3 + 0.5) / 2, 0.5])
    assert confidence(entropy, number, torch.tensor([0, 0])).tolist() == [0.0, 0.0]


def test_paragraphs_are_parted_by_blank_lines():
    assert paragraphs(["one", " two\n", "\n", "three", "\n\n", "four"]) == [0, 0, 0, 1, 1, 2]
    assert paragraphs(["one", "\n\n", "\n", " "]) == [0, 0, 0, 0], "what is blank goes on"
    assert paragraphs(["\n\n", "one\n", "two"]) == [0, 0, 0]
    assert paragraphs([]) == []


def test_votes_weigh_as_much_as_they_are_sure():
    # the specification's example: a has 1.7, b has 0.7, and a majority of votes
    assert weighted_vote([0, 0, 1, 1, 1], [0.9, 0.8, 0.3, 0.2, 0.2]) == 0
    assert weighted_vote([0, 0, 1, 1, 1], [1.0] * 5) == 1
    assert weighted_vote([1, 0], [0.5, 0.5]) == 1, "the first of equals"
    assert weighted_vote([-1, -1], [1.0, 1.0]) == -1


def test_parts_have_labels_of_half_of_the_group():
    answers, sure = [0, 0, 1, 1], [1.0] * 4
    assert labels(answers, sure, 4) == [0], "all vote"
    assert labels(answers, sure, 2) == [0, 1]
    assert labels(answers, sure, 1) == [0, 0, 1, 1], "from the rollout on: 0 0, 0 1, 1 1, 1 0"
    assert part_size(answers, sure, 1.0) == 4, "quality alone: all labels agree with half of the group, so the largest part"
    # labels [0, 0, 1, 1], [0, 1] and [0]: agreement is the same, variety 1/2, 1 and 1
    assert part_size(answers, sure, 0.0) == 4


def step(answers, entropy, *, off_policy=()):
    x = inputs([(0.5, 0, True) for _ in answers], off_policy=off_policy)
    paragraph = torch.zeros((len(answers), 3), dtype=torch.int64)
    entropy_NT = torch.tensor(entropy)[:, None].expand(-1, 3)
    return dataclasses.replace(x, answer_N=torch.tensor(answers), entropy_NT=entropy_NT, provided={"paragraph_NT": paragraph})


def shaped(x, **arguments):
    return scope_proposed(x.rewards_NK, x.valid_N, x, reward="task", **arguments)[:, 0].tolist()


def test_scope_proposed_by_hand():
    # confidences 0.9, 0.8, 0.3, 0.2, 0.2: of m 1, 2, 4, 5 the labels are (halves of two from the part on) 0 0 1 1 0, 0 1 0, 0 0 and 0, so
    # their agreement with the group is (3 * 2 + 2 * 3) / 25, (2 + 3 + 2) / 15, 4 / 10 and 2 / 5: by it alone m 1 is best
    sure = [-math.log(c) for c in (0.9, 0.8, 0.3, 0.2, 0.2)]
    x = step([0, 0, 1, 1, 1], sure)
    assert part_size([0, 0, 1, 1, 1], [0.9, 0.8, 0.3, 0.2, 0.2], 1.0) == 1
    assert shaped(x, balance=1.0) == [1.0, 1.0, 1.0, 1.0, 0.0]
    # variety is 2 / 5, 2 / 3, 1 / 2 and 1: by it alone one label for all, whose vote goes to the sure ones
    assert shaped(x, balance=0.0) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert shaped(step([-1, -1], [0.1, 0.1])) == [0.5, 0.5], "nobody can be read"
    assert shaped(step([0, 1, -1], [0.1, 0.1, 0.1], off_policy=[0]))[2] == 0.0
    with pytest.raises(ValueError, match="balance"):
        shaped(step([0], [0.1]), balance=2.0)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=9), st.floats(0, 1))
def test_where_all_agree_all_are_right(entropy, balance):
    assert shaped(step([0] * len(entropy), entropy), balance=balance) == [1.0] * len(entropy)


@given(st.lists(st.integers(-1, 2), min_size=2, max_size=9).filter(lambda given: max(given) >= 0))
def test_rewards_are_right_or_wrong_and_what_cannot_be_read_is_wrong(answers):
    out = shaped(step(answers, [0.5] * len(answers)))
    assert set(out) <= {0.0, 1.0}
    assert all(value == 0.0 for value, answer in zip(out, answers, strict=True) if answer < 0)
