"""Time of a step by phase: operations and bytes counted by hand for shapes that are small enough."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl.extras.plan import time as clock
from vlmrl.extras.plan.activations import PackedRow
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.memory import memory
from vlmrl.extras.plan.model import Lora, Shape, Tower, named_shape, tensors
from vlmrl.extras.plan.result import plan
from vlmrl.extras.plan.settings import Settings

TINY = Shape(
    family="qwen2_5_vl",
    hidden=8,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=4,
    mlp=16,
    vocab=10,
    tied=False,
    tower=Tower(depth=2, hidden=4, heads=1, mlp=8, window=112, full=1),
)
LAYER = 8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 16
"""Weights of the matrices of one layer: q and o, k and v, three of the MLP."""


def settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {"shape": TINY, "gpu": gpu_of("h100"), "gpus": 1, "dtype": "bfloat16", "prompt": 20, "answer": 5, "answers": 3}
    return Settings(**values | {"visual": 4, "groups": 2, "budget": 35} | changes)


def test_operations_of_the_decoder() -> None:
    row = PackedRow(((20, (5, 5, 5)),))
    pairs = 20 * 21 // 2 + 3 * (5 * 20 + 15)
    assert clock.decoder_ops(settings(), row) == 2 * 2 * LAYER * 35 + 4 * 2 * 8 * pairs


def test_operations_of_the_tower() -> None:
    """Blocks and patch embedding per patch, the merger per merged token; one of two blocks attends over the whole frame."""
    block = 4 * 12 + 4 * 4 + 3 * 4 * 8
    merger = 16 * 16 + 16 * 8
    attention = 4 * 4 * 256 * (256 + 64)
    assert clock.tower_ops(settings(), 256) == 2 * 256 * (2 * block + 1176 * 4) + 2 * 64 * merger + attention


def test_training_is_three_forwards_and_recomputation_one_more() -> None:
    row = PackedRow(((20, (5, 5, 5)),))
    s = settings(freeze=("vision", "projector"))
    one, head = clock.decoder_ops(s, row), 2 * 8 * 10 * 15
    assert clock.training_ops(s) == 2 * (3 * one + 4 * head)
    assert clock.training_ops(s.changed(recompute=True)) == 2 * (4 * one + 4 * head)
    assert clock.training_ops(s.changed(lora=Lora(rank=2))) == 2 * (2 * one + 3 * head)
    assert clock.training_ops(settings()) == 2 * (3 * one + 4 * head + 3 * clock.tower_ops(s, 16))


def test_scoring_passes() -> None:
    s = settings(freeze=("vision", "projector"))
    row = PackedRow(((20, (5, 5, 5)),))
    assert clock.scoring_ops(s) == 0
    assert clock.scoring_ops(s.changed(passes=1.5)) == 1.5 * 2 * (clock.decoder_ops(s, row) + 2 * 8 * 10 * 15)


def test_traffic() -> None:
    """fsdp: two gathers and a float32 reduction for each of two micro-batches, and one gather for generation; ddp: one sum of gradients."""
    n = sum(t.count for t in tensors(TINY))
    s = settings(gpus=8, sharding="fsdp")
    link = s.gpu.link
    assert clock.traffic(s, memory(s)) == (pytest.approx((2 * n * 5 + 4 * n * 2) * 7 / 8 / link), 0)
    ddp = settings(gpus=8, sharding="ddp")
    assert clock.traffic(ddp, memory(ddp)) == (0, pytest.approx(8 * n * 7 / 8 / link))
    two_nodes = s.changed(gpus=16)
    hides, _ = clock.traffic(two_nodes, memory(two_nodes))
    assert hides == pytest.approx((2 * n * 5 + 4 * n * 2) * 7 / 8 / link + 8 * n / 8 / 2 / s.network)
    chunked = two_nodes.changed(vision_chunk=16, visual=16)
    visual = sum(t.count for t in tensors(TINY) if t.part != "language")
    assert len(chunked.rows) > 1
    assert chunked.tower_passes(chunked.rows[-1]) == 4
    assert clock.between_copies(chunked, 8) == pytest.approx(8 * (n + 3 * visual) / 8 / 2)
    everywhere = two_nodes.changed(shard_size=16)
    assert clock.traffic(everywhere, memory(everywhere))[0] == pytest.approx((2 * n * 5 + 4 * n * 2) * 15 / 16 / s.network)
    assert clock.traffic(settings(), memory(settings())) == (0, 0)
    off = settings(offload="optimizer")
    assert clock.traffic(off, memory(off)) == (0, pytest.approx(8 * n / off.gpu.host))


def test_decoding_reads_weights_and_keys() -> None:
    s = settings(shape=named_shape("qwen2.5-vl-7b"), prompt=8192, answers=8, answer=512, groups=4, engine="vllm", gpus=8, sharding="fsdp")
    bandwidth = 0.7 * s.gpu.bandwidth
    kv = 2 * 2 * 28 * 512 * (8192 + 256) * 8 * 4
    assert clock.decode(s, memory(s)) == pytest.approx(512 * (8e-3 + kv / bandwidth))
    large = s.changed(shape=named_shape("qwen2.5-vl-32b"), tp=2, gpus=64, shard_size=64)
    n = sum(t.count for t in tensors(large.shape))
    kv = 2 * 2 * 64 * 1024 * (8192 + 256) * 8 * 4
    assert clock.decode(large, memory(large)) == pytest.approx(512 * (2 * n / 2 / bandwidth + kv / bandwidth), rel=0.01)
    assert clock.decode(s.changed(engine="none"), memory(s)) == 0


def test_the_reference_engine_is_bound_by_launches() -> None:
    s = settings(shape=named_shape("qwen2.5-vl-3b"), prompt=64, groups=1)
    assert clock.decode(s, memory(s)) == pytest.approx(5 * clock.KERNELS * clock.LAUNCH * 36, rel=0.05)


def test_frozen_weights_are_read_as_they_are_kept() -> None:
    """In 16 bits; what trains in another stage is in 32 bits and cast in every step, and what is in 4 bits is made anew."""
    s = settings(lora=Lora(rank=2))
    trained, frozen = s.parameters.n_trained, s.parameters.n_frozen
    assert clock.weight_bytes(s) == clock.weight_bytes(s.changed(sharding="fsdp")) == 2 * (trained + frozen)
    assert clock.weight_bytes(s.changed(dtype="float32")) == 4 * (trained + frozen)
    later = settings(freeze=("language",), trains=("vision", "projector", "language"))
    layers = sum(t.count for t in later.parameters.frozen if t.matrix)
    assert clock.weight_bytes(later) == 2 * (later.parameters.n_trained + later.parameters.n_frozen) + 6 * layers
    packed = sum(t.count for t in s.parameters.frozen if t.quantised)
    assert clock.weight_bytes(s.changed(quantize="nf4")) - clock.weight_bytes(s) > 10 * packed


def test_phases_add_up_to_the_step() -> None:
    found = plan(settings(gpus=8, sharding="fsdp", passes=1.0)).time
    assert found.step == pytest.approx(sum(found.phases.values()))
    assert found.phases[found.dominates] == max(found.phases.values())
    assert found.exposed <= found.traffic


def test_a_gpu_that_is_twice_as_fast_halves_training() -> None:
    slow = settings(dtype="bfloat16")
    fast = slow.changed(utilisation=0.8)
    assert plan(fast).time.forward_backward == pytest.approx(plan(slow).time.forward_backward / 2)
    assert plan(slow.changed(dtype="float32")).time.forward_backward == pytest.approx(plan(slow).time.forward_backward * 989 / 67)


def test_chunks_and_shared_rows_cost_time() -> None:
    """One more forward of the tower by chunks; and where ranks share rows, one encodes while the others wait, and heads are exchanged."""
    alone = Settings(
        shape=named_shape("qwen2.5-vl-7b"), gpu=gpu_of("h100"), gpus=8, sharding="fsdp", prompt=32768, answer=512, budget=36864
    )
    tower = clock.tower_ops(alone, alone.patches) * len(alone.rows)
    chunks, shared = alone.changed(vision_chunk=8192), alone.changed(sequence=4)
    assert clock.training_ops(chunks) - clock.training_ops(alone) == pytest.approx(tower)
    assert clock.training_ops(shared) - clock.training_ops(alone) == pytest.approx(3 * 3 * tower)
    frozen = ("vision", "projector")
    assert clock.training_ops(shared.changed(freeze=frozen)) == clock.training_ops(alone.changed(freeze=frozen))
    hides, stays = clock.traffic(alone, memory(alone))
    assert clock.traffic(chunks, memory(chunks))[0] > hides
    assert clock.traffic(shared, memory(shared))[0] > 3 * hides
    assert clock.traffic(shared, memory(shared))[1] > stays
