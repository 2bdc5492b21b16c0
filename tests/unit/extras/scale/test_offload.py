"""Activations that wait in the machine's memory: what travels, that it comes back as it was, and that an update has the same bits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiny import Tiny
from tests.unit.policy.test_lora import rows
from tests.unit.train.test_on_device import moved
from vlmrl.algo import registries
from vlmrl.extras.scale import arena, offload
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.load import freeze
from vlmrl.policy.vision import VisionCache
from vlmrl.train.stage.loss import TokenObjective
from vlmrl.train.step import optimizer_step


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    """The process keeps its blocks, and in deterministic mode every byte of one is written: blocks of the usual size would stay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "BLOCK", 2**20)
        patch.setattr(offload, "_ARENAS", {})
        yield


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    turn=st.randoms(use_true_random=False),
    skip=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
)
def test_what_travels_comes_back_with_bits_strides_and_alignment(shape: list[int], turn: Any, skip: int, dtype: torch.dtype) -> None:
    numbers = 1
    for n in shape:
        numbers *= n
    tensor = torch.arange(skip + numbers).to(dtype)[skip:].view(shape)
    order = list(range(len(shape)))
    turn.shuffle(order)
    tensor = tensor.permute(order)
    kept = offload.take(tensor, set())
    back = offload.give_back(kept)
    if numbers * tensor.element_size() < offload.SMALLEST:
        assert kept is tensor
        return
    assert isinstance(kept, offload.Away)
    assert back.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    assert torch.equal(back, tensor)
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert back.data_ptr() % offload.ALIGNED == skip * tensor.element_size() % offload.ALIGNED


def test_what_would_free_nothing_stays() -> None:
    weight = torch.nn.Parameter(torch.ones(32, 32))
    stay = {weight.untyped_storage()._cdata}
    for same in (weight, weight.t(), weight[:16], weight.detach()):
        assert offload.take(same, stay) is same
    expanded = torch.ones(1, 64).expand(64, 64)
    assert offload.take(expanded, set()) is expanded, "a copy of an expanded tensor would be larger"
    sparse = torch.ones(64, 640)[:, :64]
    assert offload.take(sparse, set()) is sparse, "a copy would carry the gaps"
    gate = torch.ones(64, 128)[:, :64]
    assert isinstance(offload.take(gate, set()), offload.Away), "half of a product"


def gradients(policy: Any, tiny: Tiny, *, recompute: bool, on: bool, monkeypatch: pytest.MonkeyPatch, layout: str) -> tuple[Any, list[int]]:
    """Gradients of all weights, and the bytes of each tensor that travelled."""
    sizes: list[int] = []
    real = offload.take

    def take(tensor: torch.Tensor, stay: set[int]) -> Any:
        kept = real(tensor, stay)
        if isinstance(kept, offload.Away):
            sizes.append(tensor.numel() * tensor.element_size())
        return kept

    monkeypatch.setattr(offload, "take", take)
    one = copy.copy(policy)
    one.model = copy.deepcopy(policy.model)
    if recompute:
        one.model.gradient_checkpointing_enable({"use_reentrant": False})
        one.model.train()
    named = freeze(one, ())
    how = LAYOUTS[layout]
    batch = how.pack(rows(tiny), one.positions, one.device, pad_id=0)
    with offload.offloaded(one) if on else nullcontext():
        scored = how.forward(one, batch, VisionCache(tiny.store, budget_bytes=2**28), temperature=0.7, forbidden=(), train=True)
    (scored.logp_BT * torch.linspace(-1, 1, scored.logp_BT.shape[1])).sum().backward()
    monkeypatch.setattr(offload, "take", real)
    return {name: p.grad for name, p in named}, sizes


@pytest.mark.parametrize("layout", ["shared_prefix", "repeat"])
def test_gradients_have_the_same_bits_with_recomputation_and_without(layout: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    moved_bytes: dict[bool, int] = {}
    for recompute in (False, True):
        plain, none = gradients(tiny.policy, tiny, recompute=recompute, on=False, monkeypatch=monkeypatch, layout=layout)
        away, sizes = gradients(tiny.policy, tiny, recompute=recompute, on=True, monkeypatch=monkeypatch, layout=layout)
        assert none == []
        assert plain.keys() == away.keys()
        assert all((plain[n] is None) == (away[n] is None) for n in plain)
        assert all(torch.equal(plain[n], away[n]) for n in plain if plain[n] is not None)
        moved_bytes[recompute] = sum(sizes)
        config = tiny.policy.core.config.get_text_config()
        batch = LAYOUTS[layout].pack(rows(tiny), tiny.policy.positions, tiny.policy.device, pad_id=0)
        inputs = 4 * config.hidden_size * batch.tokens
        assert sizes.count(inputs) >= config.num_hidden_layers, "the inputs of the layers are among what travels"
    assert moved_bytes[True] < 0.5 * moved_bytes[False], "what is recomputed does not travel"


def test_a_step_on_another_device(tiny: Tiny) -> None:
    """What leaves the device comes back to it, and the update is that of a step without."""
    weights: list[dict[str, torch.Tensor]] = []
    for on in (False, True):
        with moved(tiny) as there:
            learner, batch = there.learner(), there.batch()
            learner.around = offload.offloaded if on else None
            objective = TokenObjective(loss=registries.policy_loss.bind("ppo_clip"), reducer=registries.reducer.bind("token_mean"))
            there.fake.reset()
            assert optimizer_step(learner, batch, objective).applied
            out, back = (there.fake.total(kind, "extras/scale/offload.py") for kind in ("to host", "to device"))
            assert (out > 0) is on
            assert 0.5 * out <= back <= out, "what no gradient needs stays away"
            assert there.hidden() == []
            weights.append({name: p.detach().cpu() for name, p in learner.named})
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
