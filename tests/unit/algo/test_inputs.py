"""The inputs of pure methods: a field's axes are in its name, and rows are cut by them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.support.builders import inputs
from tests.support.losses import loss_inputs
from vlmrl.algo.inputs import AdvantageInputs, has_axis


def test_the_name_of_a_tensor_says_its_axes() -> None:
    for one in dataclasses.fields(AdvantageInputs):
        if "Tensor" in str(one.type) and "Mapping" not in str(one.type):
            assert has_axis(one.name, "N") or has_axis(one.name, "K"), f"AdvantageInputs.{one.name} does not say its axes"


def test_what_few_methods_read_is_no_field() -> None:
    assert len(dataclasses.fields(AdvantageInputs)) <= 12, "register a provider (train.stage.provide) and read it from provided"


def test_every_field_of_rollouts_is_cut() -> None:
    provided = {"gaze_N": torch.arange(6), "gaze_NT": torch.arange(12).view(6, 2), "progress": torch.tensor(0.5)}
    whole = dataclasses.replace(inputs([(float(n), n // 2, True) for n in range(6)]), provided=provided)
    index = torch.tensor([4, 1])
    part = whole.of_rows(index, tokens=1)
    for one in dataclasses.fields(AdvantageInputs):
        before, after = getattr(whole, one.name), getattr(part, one.name)
        if has_axis(one.name, "N"):
            assert torch.equal(after, before[index]), one.name
        elif one.name != "provided":
            assert after == before, one.name
    assert {name: value.tolist() for name, value in part.provided.items()} == {"gaze_N": [4, 1], "gaze_NT": [[8], [2]], "progress": 0.5}


def test_a_field_that_is_added_is_cut() -> None:
    @dataclass(frozen=True, kw_only=True)
    class More(AdvantageInputs):
        gaze_N: Tensor
        mass_K: Tensor

    base = inputs([(1.0, 0, True), (0.0, 0, True), (2.0, 0, True)])
    values = {one.name: getattr(base, one.name) for one in dataclasses.fields(base)}
    part = More(**values, gaze_N=torch.tensor([5, 6, 7]), mass_K=torch.ones(1)).of_rows(torch.tensor([2]))
    assert isinstance(part, More)
    assert part.gaze_N.tolist() == [7]
    assert part.mass_K.tolist() == [1.0]


@pytest.mark.parametrize(
    ("x", "name"), [(inputs([(1.0, 0, True)]), "gaze_N"), (loss_inputs([[(1.0, 1.0)]]), "segment_BT")], ids=["advantage", "loss"]
)
def test_what_a_provider_gives_is_no_field_and_the_error_says_where_it_is(x, name: str) -> None:
    with pytest.raises(AttributeError, match=rf'has no field \'{name}\'.*needs=\("{name}",\), and found in provided\["{name}"\]'):
        getattr(x, name)
    assert not hasattr(x, name)
