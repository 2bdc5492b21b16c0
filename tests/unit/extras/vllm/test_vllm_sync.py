"""Sending weights: what is sent, that all of it lands, and that sums of bits are compared in turn. vLLM's side is a stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.support.rollout_stand_in import Receiver
from tests.support.tiny import Tiny
from vlmrl.errors import EngineError
from vlmrl.extras.vllm import sync as sync_module
from vlmrl.extras.vllm.inputs import Version
from vlmrl.extras.vllm.sync import TURNS, Sync, buckets, weights
from vlmrl.extras.vllm.worker import checksum

VERSION = Version(policy=1, vision=1, whole=1)


def test_all_names_go_first_and_those_of_a_tower_that_does_not_train_no_more(tiny: Tiny) -> None:
    receiver, policy = Receiver(), tiny.policy
    sync = Sync(receiver)
    first = sync.send(policy, VERSION, whole=True)
    assert first.tensors == len(dict(policy.model.named_parameters()))
    assert first.compared == len(receiver.held)
    policy.vision_trains = False
    part = sync.send(policy, VERSION, whole=False)
    tower = {name for name, _ in policy.model.named_parameters() if ".visual." in name}
    assert part.tensors == first.tensors - len(tower)
    assert not any(name in tower for name in receiver.landed)
    policy.vision_trains = True
    assert sync.send(policy, VERSION, whole=False).tensors == first.tensors


def test_every_parameter_is_compared_within_the_turns(tiny: Tiny) -> None:
    receiver, sync = Receiver(), None
    sync = Sync(receiver)
    tiny.policy.vision_trains = True
    sync.send(tiny.policy, VERSION, whole=True)
    receiver.asked.clear()
    for _ in range(TURNS):
        sync.send(tiny.policy, VERSION, whole=False)
    assert set().union(*receiver.asked) == set(receiver.held)
    assert max(map(len, receiver.asked)) < len(receiver.held) / 4
    tiny.policy.vision_trains = False


def test_a_tensor_that_goes_nowhere_is_an_error(tiny: Tiny) -> None:
    receiver = Receiver()
    receiver.forgets = "model.language_model.layers.0.self_attn.k_proj.bias"
    with pytest.raises(EngineError, match=r"1 tensors of the trainer went nowhere .*k_proj\.bias"):
        Sync(receiver).send(tiny.policy, VERSION, whole=True)


def test_a_parameter_that_gets_nothing_is_an_error(tiny: Tiny) -> None:
    receiver = Receiver()
    receiver.held["language_model.extra.weight"] = {}
    with pytest.raises(EngineError, match=r"1 parameters of vLLM's model got no tensor .*extra\.weight"):
        Sync(receiver).send(tiny.policy, VERSION, whole=True)


def test_bits_that_changed_on_the_way_are_an_error(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    real = receiver.vlmrl_load

    def load(bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        real([(name, torch.nextafter(t, t + 1) if name.endswith("layers.1.mlp.up_proj.weight") else t) for name, t in bucket])

    monkeypatch.setattr(receiver, "vlmrl_load", load)
    with pytest.raises(EngineError, match=r"1 parameters of vLLM's model do not hold the bits .*layers\.1\.mlp\.up_proj"):
        Sync(receiver).send(tiny.policy, VERSION, whole=True)


def test_a_refused_tensor_does_not_keep_the_others_from_being_gathered(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[str] = []

    def renamed(policy: Any, *, tower: bool) -> Any:
        for name, tensor in weights(policy, tower=tower):
            gathered.append(name)
            yield name.replace("layers.0.mlp.up_proj", "layers.0.mlp.unknown"), tensor

    monkeypatch.setattr(sync_module, "weights", renamed)
    monkeypatch.setattr(sync_module, "BUCKET_BYTES", 1)
    with pytest.raises(EngineError, match=r"refuses a tensor of the trainer: .*unknown"):
        Sync(Receiver()).send(tiny.policy, VERSION, whole=True)
    assert len(gathered) == len(dict(tiny.policy.model.named_parameters()))


def test_buckets_hold_no_more_than_they_may() -> None:
    tensors = [(str(n), torch.zeros(size)) for n, size in enumerate((10, 10, 10, 100, 1))]
    assert [[name for name, _ in bucket] for bucket in buckets(iter(tensors), 80)] == [["0", "1"], ["2"], ["3"], ["4"]]


def test_checksums_do_not_depend_on_how_a_tensor_is_cut() -> None:
    whole = torch.randn(64, 8)
    assert checksum(whole) == sum(checksum(part) for part in whole.split(7))
    assert checksum(whole.bfloat16()) == sum(checksum(part) for part in whole.bfloat16().split(5, dim=1))
    assert checksum(whole) != checksum(torch.nextafter(whole, whole + 1))
