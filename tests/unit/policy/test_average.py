"""policy.average: the average by hand, in place, saved and restored; the likelihood of answers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from vlmrl.errors import CheckpointError
from vlmrl.policy.average import AveragedWeights, answer_likelihood, blend


def test_blend():
    out = blend(torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0], requires_grad=True), 0.75)
    assert out.tolist() == [1.5, 1.0]
    assert not out.requires_grad


@given(st.integers(0, 40), st.integers(1, 7), st.sampled_from([0.5, 0.9, 0.995]))
def test_from_zero_towards_constant_weights(steps, every, decay):
    mine = torch.zeros(2, dtype=torch.float64)
    average = AveragedWeights({"w": mine}, every=every, decay=decay)
    moved = [average.step({"w": torch.ones(2, dtype=torch.float64)}) for _ in range(steps)]
    assert moved == [(n + 1) % every == 0 for n in range(steps)]
    assert mine.tolist() == pytest.approx([1 - decay ** (steps // every)] * 2)


def test_the_tensors_are_the_callers_and_stay_apart_from_the_weights():
    reference, policy = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        reference.weight.fill_(1.0)
        policy.weight.fill_(3.0)
    average = AveragedWeights(dict(reference.named_parameters()), every=1, decay=0.5)
    assert average.step(dict(policy.named_parameters()))
    assert reference.weight.tolist() == [[2.0, 2.0]]
    assert policy.weight.tolist() == [[3.0, 3.0]]


def test_saved_and_restored_bit_for_bit(tmp_path: Path):
    weights = [{"a": torch.randn(3, 2), "b": torch.randn(4)} for _ in range(12)]
    start = {"a": torch.randn(3, 2), "b": torch.randn(4)}
    one = AveragedWeights({k: v.clone() for k, v in start.items()}, every=3, decay=0.9)
    for w in weights[:5]:
        one.step(w)
    save_file(one.tensors(), tmp_path / "average.safetensors")
    two = AveragedWeights({k: v.clone() for k, v in start.items()}, every=3, decay=0.9)
    two.load_state_dict(one.state_dict(), load_file(tmp_path / "average.safetensors"))
    for w in weights[5:]:
        assert one.step(w) == two.step(w)
    assert all(torch.equal(one.tensors()[k], two.tensors()[k]) for k in ("average/a", "average/b"))
    assert one.state_dict() == two.state_dict() == {"steps": 12, "every": 3, "decay": 0.9}


def test_loading_is_strict_and_changes_nothing_on_failure():
    mine = torch.zeros(2)
    average = AveragedWeights({"w": mine}, every=2, decay=0.5)
    state, tensors = {"steps": 4, "every": 2, "decay": 0.5}, {"average/w": torch.ones(2)}
    bad = [
        (state | {"x": 1}, tensors),
        ({"steps": 4, "every": 2}, tensors),
        (state | {"decay": 0.6}, tensors),
        (state, {}),
        (state, tensors | {"average/v": torch.ones(1)}),
        (state, {"average/w": torch.ones(3)}),
    ]
    for s, t in bad:
        with pytest.raises(CheckpointError, match="averaged weights"):
            average.load_state_dict(s, t)
    assert (mine.tolist(), average.steps) == ([0.0, 0.0], 0)
    average.load_state_dict(state, tensors)
    assert (mine.tolist(), average.steps) == ([1.0, 1.0], 4)


def test_other_weights_are_refused():
    average = AveragedWeights({"w": torch.zeros(2)}, every=1)
    with pytest.raises(ValueError, match=r"missing \['w'\], unknown \['v'\]"):
        average.step({"v": torch.zeros(2)})
    assert average.steps == 0


@pytest.mark.parametrize("bad", [{"every": 0}, {"decay": 1.0}, {"decay": -0.1}])
def test_arguments_are_checked(bad):
    with pytest.raises(ValueError, match="averaged weights"):
        AveragedWeights({"w": torch.zeros(1)}, **bad)


def test_half_precision_would_not_move():
    with pytest.raises(ValueError, match=r"'w' is torch\.bfloat16"):
        AveragedWeights({"w": torch.zeros(1, dtype=torch.bfloat16)})


def test_answer_likelihood():
    logp = torch.tensor([[math.log(0.9), math.log(0.4), math.log(0.1), float("nan")], [-9.0, -9.0, -0.5, 0.0], [0.0] * 4])
    mask = torch.tensor([[False, True, True, False], [False, False, True, False], [False] * 4])
    out = answer_likelihood(logp, mask)
    assert out[:2].tolist() == pytest.approx([math.sqrt(0.4 * 0.1), math.exp(-0.5)])
    assert math.isnan(out[2])
    assert out.dtype == torch.float64
