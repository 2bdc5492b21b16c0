"""What holds for every registered reducer: any split of a step gives the same loss and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.algo import registries
from vlmrl.methods import registries as load_all

load_all()
REDUCERS = registries.reducer.names()
ARGUMENTS = {"fixed_length": {"length": 5}}
MASKS = st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=8)


def reduced(name: str, mask: torch.Tensor, parts: list[slice]) -> torch.Tensor:
    """Weight of each token in the loss of the step."""
    found = [registries.reducer.bind(name, ARGUMENTS.get(name, {}))(mask[part]) for part in parts]
    count = torch.stack([f.count for f in found]).sum()
    return torch.cat([f.weight_BT for f in found]) / count.clamp(min=1)


@pytest.mark.parametrize("name", REDUCERS)
@given(rows=MASKS, cut=st.integers(0, 8))
def test_any_split_into_micro_batches_gives_the_same_weights(name, rows, cut):
    mask = torch.tensor(rows)
    whole = reduced(name, mask, [slice(0, len(rows))])
    torch.testing.assert_close(reduced(name, mask, [slice(0, cut), slice(cut, len(rows))]), whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(reduced(name, mask, [slice(i, i + 1) for i in range(len(rows))]), whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", REDUCERS)
@given(rows=MASKS)
def test_masked_tokens_and_empty_rows_count_nowhere(name, rows):
    mask = torch.tensor(rows)
    method = registries.reducer.bind(name, ARGUMENTS.get(name, {}))
    found = method(mask)
    assert (found.weight_BT[~mask] == 0).all()
    assert (found.weight_BT[mask] > 0).all()
    padded = method(torch.cat([torch.cat([mask, torch.zeros(len(rows), 3, dtype=torch.bool)], 1), torch.zeros(2, 8, dtype=torch.bool)]))
    assert torch.equal(padded.count, found.count)
    assert torch.equal(padded.weight_BT[: len(rows), :5], found.weight_BT)


@pytest.mark.parametrize("name", REDUCERS)
def test_an_empty_step_has_count_zero(name):
    found = registries.reducer.bind(name, ARGUMENTS.get(name, {}))(torch.zeros(2, 3, dtype=torch.bool))
    assert float(found.count) == 0
    assert found.weight_BT.isfinite().all()
