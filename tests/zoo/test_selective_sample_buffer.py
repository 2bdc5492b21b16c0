"""algo.filter.selective_sample_buffer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.filter.zero_variance import zero_variance
from vlmrl.zoo.filter.selective_sample_buffer import selective_sample_buffer

NAN = float("nan")


def test_selective_sample_buffer():
    # group 0 is flat; group 1 has z-scores +-.7071; group 2 has one of four right: 1.5 and three of -.5
    rows = [(1.0, 0, True)] * 3 + [(0.0, 1, True), (1.0, 1, True)] + [(float(i == 0), 2, True) for i in range(4)] + [(NAN, 3, False)]
    keep, reason = selective_sample_buffer(inputs(rows))
    assert keep.tolist() == [False] * 3 + [True] * 6 + [False]
    assert reason == "selective_sample_buffer"
    assert selective_sample_buffer(inputs(rows), min_priority=0.7)[0].tolist() == [False] * 3 + [True] * 6 + [False]
    # mean |A| is .7071 and .75
    assert selective_sample_buffer(inputs(rows), min_priority=0.72)[0].tolist() == [False] * 5 + [True] * 4 + [False]


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.1 + 0.2, 1.0]), st.integers(0, 3), st.booleans()), min_size=1, max_size=12),
    st.sets(st.integers(0, 11)),
)
def test_without_a_threshold_it_keeps_what_has_variance(rows, off_policy):
    x = inputs(rows, off_policy=list(off_policy))
    assert selective_sample_buffer(x)[0].tolist() == zero_variance(x)[0].tolist()
