"""algo.advantage.reinforce_pp_baseline against numbers computed by hand and a masked whitening of token tensors."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.reinforce_pp_baseline import reinforce_pp_baseline

NAN = float("nan")


def of(groups, lengths):
    x = inputs([(float(v), g, v == v) for g, values in enumerate(groups) for v in values])
    return dataclasses.replace(x, length_N=torch.tensor(lengths, dtype=torch.int64))


def test_two_groups():
    out = reinforce_pp_baseline(of([[1, 0, 0, 0], [1, 1, 1, 0]], [2, 1, 1, 1, 1, 1, 1, 2])).tolist()
    assert out == pytest.approx([1.3887, *[-0.4629] * 3, *[0.4629] * 3, -1.3887], abs=5e-5)


GROUPS = st.lists(
    st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(1, 5)), min_size=3, max_size=3).filter(
        lambda group: len({reward for reward, _ in group}) > 1
    ),
    min_size=1,
    max_size=3,
)


@given(groups=GROUPS, ddof=st.sampled_from([0, 1]))
def test_equals_whitening_of_the_token_tensor(groups, ddof):
    lengths = [length for group in groups for _, length in group]
    out = reinforce_pp_baseline(of([[r for r, _ in group] for group in groups], lengths), ddof=ddof)
    centred = torch.tensor([[r for r, _ in group] for group in groups], dtype=torch.float64)
    centred = (centred - centred.mean(dim=1, keepdim=True)).flatten()
    tokens = torch.cat([centred[i : i + 1].expand(n) for i, n in enumerate(lengths)])
    white = (tokens - tokens.mean()) * torch.rsqrt(tokens.var(correction=ddof) + 1e-8)
    torch.testing.assert_close(torch.cat([out[i : i + 1].expand(n) for i, n in enumerate(lengths)]), white, rtol=0, atol=1e-9)


@given(groups=GROUPS)
def test_tokens_have_mean_zero_and_variance_one(groups):
    lengths = torch.tensor([length for group in groups for _, length in group], dtype=torch.float64)
    out = reinforce_pp_baseline(of([[r for r, _ in group] for group in groups], lengths.long().tolist()), ddof=0, epsilon=0.0)
    assume(float(out.abs().max()) > 0)
    assert float((lengths * out).sum()) == pytest.approx(0, abs=1e-9)
    assert float((lengths * out.square()).sum() / lengths.sum()) == pytest.approx(1)


def test_flat_groups_are_exactly_zero_but_count_and_groups_of_one_do_not():
    out = reinforce_pp_baseline(of([[1, 0], [3, 3], [7], [NAN]], [3, 1, 2, 2, 50, 60]), epsilon=0.0).tolist()
    tokens = torch.tensor([0.5] * 3 + [-0.5] + [0.0] * 4, dtype=torch.float64)
    expected = ((torch.tensor([0.5, -0.5], dtype=torch.float64) - tokens.mean()) / tokens.std()).tolist()
    assert out == pytest.approx([*expected, 0, 0, 0, 0])
    assert out[2:] == [0.0] * 4
