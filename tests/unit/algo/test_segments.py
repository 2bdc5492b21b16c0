"""algo.segments against numpy, group by group."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.algo import segments

ROWS = st.lists(st.tuples(st.floats(-100, 100), st.sampled_from([-7, 0, 3, 10**12]), st.booleans()), max_size=12)


@given(rows=ROWS)
def test_every_statistic(rows):
    x = torch.tensor([v if ok else math.nan for v, _, ok in rows], dtype=torch.float64)
    ids = torch.tensor([g for _, g, _ in rows], dtype=torch.int64)
    valid = torch.tensor([ok for _, _, ok in rows], dtype=torch.bool)
    for i, (_, mine, _) in enumerate(rows):
        v = np.array([value for value, g, ok in rows if g == mine and ok])
        assert segments.count(ids, valid)[i] == len(v)
        np.testing.assert_allclose(float(segments.mean(x, ids, valid)[i]), v.mean() if len(v) else 0.0, atol=1e-12)
        for ddof in (0, 1):
            wanted = v.std(ddof=ddof) if len(v) > ddof else 0.0
            np.testing.assert_allclose(float(segments.std(x, ids, valid, ddof=ddof)[i]), wanted, atol=1e-9)
        assert float(segments.minimum(x, ids, valid)[i]) == (v.min() if len(v) else math.inf)
        assert float(segments.maximum(x, ids, valid)[i]) == (v.max() if len(v) else -math.inf)
    assert segments.mean(x, ids, valid).shape == x.shape


def test_flat():
    x = torch.tensor([0.1 + 0.2, 0.3, 0.0, 1e-5, 1e9, 1e9 + 1, 5.0, math.nan, math.nan], dtype=torch.float64)
    ids = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4])
    assert segments.flat(x, ids, ~x.isnan()).tolist() == [True, True, False, False, True, True, True, True, True]
