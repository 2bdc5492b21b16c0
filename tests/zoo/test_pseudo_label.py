"""Rewards `majority_vote`, `urpa` and `ttrv`: agreement within the group itself."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.rewards.temporal_iou import temporal_iou_reward
from vlmrl.zoo.rewards.pseudo_label import majority_vote, pseudo_span, ttrv, urpa, vote
from vlmrl.zoo.rewards.surrogate_length import surrogate_length

CTX = RewardContext()


def answers(*texts):
    return group([f"<think>t</think><answer>{text}</answer>" for text in texts])


def test_majority_vote_by_hand():
    assert majority_vote(answers("Yes", " yes", "no", "yes."), CTX) == [1.0, 1.0, 0.0, 0.0]
    assert majority_vote(answers("a", "b"), CTX) == [1.0, 0.0], "the first of equals"
    assert majority_vote(group(["no tags", "<think>"]), CTX) == [None, None]


def test_majority_vote_weighs_models_by_their_agreement():
    # agreement 1, 0.5 and 0.75: a has 4, b has 2 * 0.5 + 3 * 0.75 = 3.25, though it has more ballots
    assert vote([["a"] * 4, ["b", "b", "c", "d"], ["b", "b", "b", "f"]]) == "a"
    assert vote([["a", "a", "b", "b", "b"]]) == "b"
    assert vote([[None], []]) is None


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8))
def test_majority_vote_of_one_answer_is_right_for_all(given_answers):
    assert majority_vote(answers(*["a"] * len(given_answers)), CTX) == [1.0] * len(given_answers)
    assert 1.0 in majority_vote(answers(*given_answers), CTX)


def test_majority_vote_counts_sampled_rows_only():
    one = answers("a", "b", "b")
    injected = tuple(dataclasses.replace(rollout, provenance="ground_truth") for rollout in one.rollouts[1:])
    assert majority_vote(dataclasses.replace(one, rollouts=(one.rollouts[0], *injected)), CTX) == [1.0, 0.0, 0.0]


SPANS = [(2.0, 6.0), (2.2, 6.4), (1.8, 5.6), (2.0, 6.0)]


def test_urpa_by_hand():
    label, confidence = pseudo_span(SPANS, 1.0)
    assert label == pytest.approx((2.0, 6.0))
    assert confidence == pytest.approx(0.6543, abs=1e-4)
    out = urpa(answers(*[f"{a} to {b}" for a, b in SPANS]), CTX)
    assert out == pytest.approx([confidence * v for v in (1, 0.8636, 0.8571, 1)], abs=1e-4)
    # beside the form with weight 0.5: the paper's reward
    assert [0.5 + 0.5 * (v or 0.0) for v in out] == pytest.approx([0.8271, 0.7825, 0.7804, 0.8271], abs=1e-4)


def test_urpa_leaves_unreadable_spans_out():
    assert urpa(answers("2 to 6", "2 to 6", "6 to 2", "none"), CTX) == pytest.approx([1.0, 1.0, 0.0, 0.0])
    assert urpa(answers("2 to 6", "none"), CTX) == [None, None]
    with pytest.raises(ValueError, match="urpa"):
        urpa(answers("2 to 6"), CTX, gamma=-1.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=2, max_size=6), st.integers(0, 100))
def test_urpa_does_not_care_when_an_event_is(rows, shift):
    spans = [(float(start), float(start + length)) for start, length in rows]
    moved = [(start + shift, end + shift) for start, end in spans]
    assert pseudo_span(spans, 0.1)[1] == pytest.approx(pseudo_span(moved, 0.1)[1])
    assert 0 < pseudo_span(spans, 0.01)[1] <= 1


def test_urpa_is_not_asked_for_the_gold_answer():
    """A check of the data leaves out columns that know none: alone, `urpa` judges nobody there."""
    assert RewardRunner([("urpa", 1.0, urpa)]).self_test([sample()], "think_answer") == []
    assert RewardRunner([("surrogate_length", 1.0, partial(surrogate_length, maximum=4))]).self_test([sample()], "think_answer") == []
    assert RewardRunner([("temporal_iou", 1.0, temporal_iou_reward), ("urpa", 1.0, urpa)]).self_test([sample()], "think_answer") == []


def test_ttrv_by_hand():
    """Shares 1/2, 1/4 and, of what cannot be read, 1/4: the entropy is 1.5 ln 2 of at most ln 3."""
    mixed = group(
        ["<think>t</think><answer>Yes</answer>", "<think>t</think><answer> yes</answer>", "<think>t</think><answer>no</answer>", "x"]
    )
    entropy = 1.5 * math.log(2) / math.log(3)
    assert ttrv(mixed, CTX) == pytest.approx([0.5 - 0.75 * entropy, 0.5 - 0.75 * entropy, 0.25 - 0.75 * entropy, -0.75 * entropy])
    assert ttrv(mixed, CTX, alpha=0.0) == [0.5, 0.5, 0.25, 0.0]
    assert ttrv(answers("a", "a"), CTX) == [1.0, 1.0]
    assert ttrv(answers("a", "b"), CTX) == pytest.approx([-0.25, -0.25])
    assert ttrv(group(["no tags", "<think>"]), CTX) == [None, None]
    with pytest.raises(ValueError, match="alpha is -1"):
        ttrv(mixed, CTX, alpha=-1.0)


def test_ttrv_counts_sampled_rows_only():
    one = answers("a", "b", "c")
    injected = dataclasses.replace(one.rollouts[2], provenance="ground_truth")
    rows = (*one.rollouts[:2], injected)
    assert ttrv(dataclasses.replace(one, rollouts=rows), CTX, alpha=0.0) == [0.5, 0.5, 0.0]


def test_a_mean_cancels_the_entropy_of_ttrv():
    found = [ttrv(answers("a", "a", "b", "c"), CTX, alpha=alpha) for alpha in (0.0, 0.75)]
    centred = [[value - sum(row) / 4 for value in row] for row in found]
    assert centred[0] == pytest.approx(centred[1])
