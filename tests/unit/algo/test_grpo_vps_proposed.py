"""algo.reweight.grpo_vps_proposed, and `segments.cuts`."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.reweight.grpo_vps_proposed import grpo_vps_proposed, progress
from vlmrl.algo.segments import cuts


def test_cuts_by_hand():
    entropy = [9.0, 0.1, 0.2, 5.0, 4.0, 0.1, 3.0, 0.1, 0.1]
    assert cuts(entropy, 3, 2) == [0, 3, 6, 9], "the first token begins a segment anyway, and the one at 4 is next to that at 3"
    assert cuts(entropy, 3, 1) == [0, 3, 4, 9]
    assert cuts([1.0] * 4, 3, 10) == [0, 4, 4, 4], "too short to cut"
    assert cuts([], 2, 1) == [0, 0, 0]
    assert cuts(entropy, 1, 1) == [0, 9]


@given(st.lists(st.floats(0, 5), max_size=30), st.integers(1, 6), st.integers(1, 5))
def test_cuts_rise_and_keep_apart(entropy, count, least):
    out = cuts(entropy, count, least)
    assert len(out) == count + 1
    assert (out[0], out[-1]) == (0, len(entropy))
    inner = sorted({*out} - {0, len(entropy)})
    places = [0, *inner, len(entropy)]
    assert out == sorted(out)
    assert not inner or all(b - a >= least for a, b in itertools.pairwise(places))


def step(belief, cut, rows, **more):
    x = inputs(rows)
    return dataclasses.replace(x, provided={"belief_NS": torch.tensor(belief).double(), "cut_NS": torch.tensor(cut)}, **more)


def test_grpo_vps_proposed_by_hand():
    # beliefs 0.2, 0.5, 0.4, 0.9: progress 0.3, -0.1, 0.5; z-scores 0.267, -1.336, 1.069
    x = step([[0.2, 0.5, 0.4, 0.9]], [[0, 2, 3, 4]], [(1.0, 0, True)])
    assert progress(x.provided["belief_NS"], x.provided["cut_NS"], x.group_N, x.valid_N)[0].tolist() == pytest.approx(
        [0.2673, -1.3363, 1.0690], abs=1e-3
    )
    out = grpo_vps_proposed(x, torch.full((1, 6), 2.0), beta=0.5, segments=3, least=1)
    assert out[0].tolist() == pytest.approx([2.1336, 2.1336, 1.3318, 2.5345, 2.0, 2.0], abs=1e-3), "the answer keeps its advantage"
    out = grpo_vps_proposed(x, torch.full((1, 6), -0.1), beta=0.5, segments=3, least=1)
    assert out[0].tolist() == pytest.approx([-0.01, -0.01, -0.19, -0.01, -0.1, -0.1], abs=1e-6), "at most nine tenths"


def test_grpo_vps_proposed_pools_over_the_group_and_leaves_out_what_is_not_there():
    belief = [[0.1, 0.3, 0.3], [0.2, 0.1, 0.1], [0.5, 0.9, 0.9], [float("nan")] * 3]
    cut = [[0, 2, 2], [0, 2, 2], [0, 2, 2], [0, 2, 2]]
    x = step(belief, cut, [(1.0, 0, True), (0.0, 0, True), (1.0, 1, True), (0.0, 0, True)])
    out = progress(x.provided["belief_NS"], x.provided["cut_NS"], x.group_N, x.valid_N)
    assert out.tolist() == [pytest.approx([1.0, 0.0], abs=1e-3), pytest.approx([-1.0, 0.0], abs=1e-3), [0.0, 0.0], [0.0, 0.0]]
    unjudged = dataclasses.replace(x, valid_N=torch.tensor([True, False, True, True]))
    assert grpo_vps_proposed(unjudged, torch.ones(4, 2), segments=2).tolist() == torch.ones(4, 2).tolist()


@pytest.mark.parametrize("wrong", [{"beta": -1.0}, {"most": 1.0}, {"segments": 0}, {"least": 0}])
def test_grpo_vps_proposed_refuses_its_arguments(wrong):
    with pytest.raises(ValueError, match="grpo_vps_proposed"):
        grpo_vps_proposed(step([[0.1, 0.2]], [[0, 1]], [(1.0, 0, True)]), torch.ones(1, 1), **wrong)
