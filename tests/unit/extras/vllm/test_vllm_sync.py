"""Sending weights: what is sent, that all of it lands, and that sums of bits are compared, also of shards. vLLM's side is a stand-in."""

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
from vlmrl.extras.vllm.sync import Sent, Sync, buckets, check, weights
from vlmrl.extras.vllm.worker import LoadReport, checksum

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


def test_a_parameter_that_does_not_hold_what_came_is_an_error(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    real = receiver.vlmrl_finish

    def finish() -> LoadReport:
        receiver.held["language_model.layers.1.mlp.up_proj.weight"]["model.language_model.layers.1.mlp.up_proj.weight"] += 1
        return real()

    monkeypatch.setattr(receiver, "vlmrl_finish", finish)
    with pytest.raises(EngineError, match=r"1 parameters of vLLM's model do not hold the bits .*layers\.1\.mlp\.up_proj"):
        Sync(receiver).send(tiny.policy, VERSION, whole=True)


def test_decays_go_in_float32_and_the_rest_in_the_type_of_the_engine() -> None:
    sent = Sent()
    weights = [("layers.0.linear_attn.A_log", torch.randn(4)), ("layers.0.linear_attn.dt_bias", torch.randn(4))]
    given = dict(sent.noted(iter(weights), torch.bfloat16))
    assert [one.dtype for one in given.values()] == [torch.float32, torch.bfloat16]
    assert sent.nbytes == 4 * 4 + 4 * 2


def test_a_parameter_that_got_a_part_only_is_an_error(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    real = receiver.vlmrl_finish
    monkeypatch.setattr(receiver, "vlmrl_finish", lambda: {**real(), "partial": ["layers.0.qkv_proj.weight"]})
    with pytest.raises(EngineError, match=r"1 parameters of vLLM's model got only a part: layers\.0\.qkv_proj"):
        Sync(receiver).send(tiny.policy, VERSION, whole=True)


def two_workers(parts: Sequence[torch.Tensor], came: Sequence[torch.Tensor]) -> list[LoadReport]:
    return [
        {
            "landed": {"w": ["layer.w"]},
            "arrived": {"w": checksum(whole)},
            "held": {"layer.w": checksum(part) if part.numel() else checksum(whole)},
            "sizes": {"layer.w": part.numel()},
            "partial": [],
            "error": "",
            "lost": "",
        }
        for part, whole in zip(parts, came, strict=True)
    ]


def test_bits_are_compared_over_all_workers_of_a_server() -> None:
    whole = torch.randn(6, 4)
    sent = Sent()
    list(sent.noted(iter([("w", whole)]), torch.float32))
    nothing, flipped = torch.empty(0), whole.clone()
    flipped[5, 3] += 1
    both = (whole, whole)
    for shards in (whole.split(3), whole.split(2, dim=1), both, (nothing, nothing)):
        assert check(two_workers(shards, both), sent) == 1
    assert check(two_workers((whole[:4], whole[2:]), both), sent) == 0, "rows that both have: only what came to each is known"
    for shards in (flipped.split(3), (whole, flipped), (whole[:3], whole[:3])):
        with pytest.raises(EngineError, match=r"1 parameters of vLLM's model do not hold the bits that were sent: layer\.w"):
            check(two_workers(shards, both), sent)
    for shards in (both, (nothing, nothing), (whole[:4], whole[2:])):
        with pytest.raises(EngineError, match=r"1 tensors of the trainer came to vLLM with other bits \(worker 1\): w"):
            check(two_workers(shards, (whole, flipped)), sent)


def test_what_a_worker_has_noticed_is_an_error_and_so_is_a_tensor_that_was_not_sent() -> None:
    whole = torch.randn(2, 2)
    sent = Sent()
    list(sent.noted(iter([("w", whole)]), torch.float32))
    reports = two_workers((whole, whole), (whole, whole))
    reports[1]["error"] = "KeyError: 'w.unknown'"
    with pytest.raises(EngineError, match=r"refuses a tensor of the trainer: KeyError: 'w.unknown' \(worker 1\)"):
        check(reports, sent)
    reports = two_workers((whole, whole), (whole, whole))
    reports[0]["landed"]["v"] = ["layer.w"]
    with pytest.raises(EngineError, match=r"1 tensors came to vLLM that the trainer did not send \(worker 0\): v"):
        check(reports, sent)


def test_a_tensor_that_goes_nowhere_is_an_error(tiny: Tiny) -> None:
    receiver = Receiver()
    receiver.forgets = "model.language_model.layers.0.self_attn.k_proj.bias"
    with pytest.raises(EngineError, match=r"1 tensors of the trainer went nowhere .*k_proj\.bias"):
        Sync(receiver).send(tiny.policy, VERSION, whole=True)


def test_a_parameter_that_gets_nothing_is_an_error(tiny: Tiny) -> None:
    receiver = Receiver()
    receiver.held["language_model.extra.weight"] = {"x": torch.ones(2)}
    with pytest.raises(EngineError, match=r"1 parameters of vLLM's model got no tensor .*extra\.weight"):
        Sync(receiver).send(tiny.policy, VERSION, whole=True)


def test_bits_that_changed_on_the_way_are_an_error(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    real = receiver.vlmrl_load

    def load(bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        real([(name, torch.nextafter(t, t + 1) if name.endswith("layers.1.mlp.up_proj.weight") else t) for name, t in bucket])

    monkeypatch.setattr(receiver, "vlmrl_load", load)
    with pytest.raises(EngineError, match=r"1 tensors of the trainer came to vLLM with other bits: .*layers\.1\.mlp\.up_proj"):
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
