"""Memory by part: the state of real models to the byte, 16-bit copies of weights, packed rows as the trainer deals them, and the phases."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import saved_bytes
from tests.support.tiny import Tiny
from vlmrl.config.schema import OptimSection
from vlmrl.extras.plan import memory as mem
from vlmrl.extras.plan.gpus import GPUS, gpu_of
from vlmrl.extras.plan.host import page_locked
from vlmrl.extras.plan.model import FAMILIES, Lora, named_shape, shape_of, tensors
from vlmrl.extras.plan.settings import SLACK, Settings, deal
from vlmrl.extras.plan.state import of_muon, saved_by_nf4, shard
from vlmrl.extras.scale import muon
from vlmrl.policy import nf4
from vlmrl.policy.load import COMPUTE, freeze, load_policy
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec, Policy
from vlmrl.policy.pack import partition
from vlmrl.policy.precision import settle_types
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.train.adamw import make_optimizer
from vlmrl.train.tensors import optimizer_tensors
from vlmrl.types import PARTS, GenerationSettings, Part, Request


def settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {"shape": named_shape("qwen2.5-vl-7b"), "gpu": gpu_of("h100"), "gpus": 1, "dtype": "bfloat16"}
    return Settings(**values | changes)


def settled(policy: Policy, trains: tuple[Part, ...]) -> None:
    """Weights in the types that loading gives them."""
    settle_types(policy.model, family=policy.bundle.family, compute=policy.compute, trains=trains)


@pytest.mark.parametrize("name", ["qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen3-vl-8b"])
@pytest.mark.parametrize(("frozen", "lora"), [((), None), (("vision", "projector"), None), ((), 16)], ids=["all", "decoder", "adapters"])
def test_state_in_the_shapes_of_published_models(name: str, frozen: tuple[Part, ...], lora: int | None) -> None:
    """Storages of the real modules without memory, with the types that loading gives them; and of a reference, which is loaded as one
    that trains if it moves."""
    shape, trains = named_shape(name), () if lora is not None else tuple(part for part in PARTS if part not in frozen)
    s = settings(shape=shape, freeze=frozen, lora=None if lora is None else Lora(rank=lora), reference=True)
    policy = saved_bytes.policy_of(saved_bytes.published(name), compute=torch.bfloat16)
    settled(policy, trains)
    if lora is not None:
        add_adapters(policy, LoraSpec(rank=lora, alpha=8.0), seed_of=lambda _: 0, base="")
    trained = sum(p.numel() for _, p in freeze(policy, frozen))
    found = mem.state(s, 1)
    assert found.weights == pytest.approx(sum(p.nbytes for p in policy.model.parameters()), rel=1e-6)
    assert (found.gradients, found.moments) == (4 * trained, 8 * trained)
    if lora is None:
        for moves in (False, True):
            reference = saved_bytes.policy_of(saved_bytes.published(name), compute=torch.bfloat16)
            settled(reference, trains if moves else ())
            held = sum(p.nbytes for p in reference.model.parameters())
            assert mem.state(s.changed(moves=moves), 1).reference == pytest.approx(held, rel=1e-6)


class Copies(TorchDispatchMode):
    """Bytes of the 16-bit copies that are made of a model's weights, once for each weight and time."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.owner = {p.untyped_storage().data_ptr(): name for name, p in policy.model.named_parameters()}
        self.made: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::_to_copy" and (name := self.owner.get(args[0].untyped_storage().data_ptr())) is not None:
            self.made.setdefault(name, []).append(out.nbytes)
        return out


WAYS: dict[str, dict[str, Any]] = {"all": {}, "decoder": {"freeze": ("vision", "projector")}, "adapters": {"lora": Lora(rank=4)}}
WAYS |= {"nf4": WAYS["adapters"] | {"quantize": "nf4"}}


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_weights_in_a_rollout(way: str, tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    """Under autocast, of what trains and nothing else, each once; under adapters the base is read as it is."""
    how = WAYS[way]
    if way == "nf4":
        pytest.importorskip("bitsandbytes")
    trains = () if "lora" in how else tuple(part for part in PARTS if part not in how.get("freeze", ()))
    more = {"quantize": how.get("quantize", "none"), "trains": trains}
    policy = load_policy(str(tiny_files[0]), tiny.bundle, device="cpu", dtype="bfloat16", **more)
    if "lora" in how:
        add_adapters(policy, LoraSpec(rank=4, alpha=8.0), seed_of=lambda _: 0, base="")
    named = freeze(policy, how.get("freeze", ()))
    request = Request(prompt=tiny.prompts(1)[0], ks=(0, 1), seeds=(1, 2))
    with Copies(policy) as copies:
        HFEngine(policy, VisionCache(tiny.store, budget_bytes=2**26)).generate([request], GenerationSettings(max_new_tokens=6))
    assert set(copies.made) <= {name for name, _ in named}
    assert {len(sizes) for sizes in copies.made.values()} == {1}
    planned = mem.rollout_casts(settings(shape=shape_of(policy.model.config.to_dict()), **how))
    assert planned == sum(sizes[0] for sizes in copies.made.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("frozen", "lora"), [((), None), (("vision",), None), (("language",), None), ((), 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_is_exact(family: str, tied: bool, frozen: tuple[Part, ...], lora: int | None, dtype: str) -> None:
    """Weights, gradients and moments of a real model behind the trainer's own optimizer."""
    policy = saved_bytes.policy_of(saved_bytes.build(family, tied=tied), compute=COMPUTE[dtype])
    settled(policy, () if lora is not None else tuple(part for part in PARTS if part not in frozen))
    shape = shape_of(policy.model.config.to_dict())
    if lora is not None:
        add_adapters(policy, LoraSpec(rank=lora, alpha=8.0), seed_of=lambda _: 0, base="")
    named = freeze(policy, frozen)
    optimizer, _ = make_optimizer(named, OptimSection())
    sum(p.sum() for _, p in named).backward()
    optimizer.step()
    weights = sum(p.nbytes for p in policy.model.parameters())
    gradients = sum(p.grad.nbytes for _, p in named if p.grad is not None)
    moments = sum(v.nbytes for held in optimizer.state.values() for k, v in held.items() if k != "step")
    found = mem.state(settings(shape=shape, dtype=dtype, freeze=frozen, lora=None if lora is None else Lora(rank=lora)), 1)
    assert (found.weights, found.gradients, found.moments) == (weights, gradients, moments)
    assert found.total == weights + gradients + moments


@pytest.mark.parametrize(("frozen", "lora"), [((), None), (("vision",), None), ((), 64)])
def test_moments_of_8_bits_are_exact(frozen: tuple[str, ...], lora: int | None) -> None:
    """And far from those of 32 bits, though small tensors keep these."""
    policy = saved_bytes.policy_of(saved_bytes.build("qwen2_5_vl", tied=True), compute=torch.float32)
    shape = shape_of(policy.model.config.to_dict())
    if lora is not None:
        add_adapters(policy, LoraSpec(rank=lora, alpha=8.0), seed_of=lambda _: 0, base="")
    named = freeze(policy, frozen)
    optimizer, order = make_optimizer(named, OptimSection(kind="adamw8bit"))
    sum(p.sum() for _, p in named).backward()
    optimizer.step()
    tensors, _ = optimizer_tensors(optimizer, order)
    moments = sum(v.nbytes for name, v in tensors.items() if not name.startswith("step/"))
    s = settings(shape=shape, freeze=frozen, lora=None if lora is None else Lora(rank=lora))
    assert mem.state(s.changed(optimizer="adamw8bit"), 1).moments == moments
    assert moments < 0.5 * mem.state(s, 1).moments
    assert mem.state(s.changed(optimizer="adamw8bit", sharding="fsdp", gpus=2), 2) == mem.state(s.changed(sharding="fsdp", gpus=2), 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frozen", [(), ("vision", "projector")])
def test_muons_state_is_exact(family: str, frozen: tuple[str, ...]) -> None:
    """One number for each weight of the matrices that it takes, two for the rest."""
    policy = saved_bytes.policy_of(saved_bytes.build(family, tied=False), compute=torch.float32)
    named = freeze(policy, frozen)
    optimizer, _ = make_optimizer(named, OptimSection(kind="muon"))
    sum(p.sum() for _, p in named).backward()
    optimizer.step()
    moments = sum(v.nbytes for held in optimizer.state.values() for k, v in held.items() if k != "step")
    s = settings(shape=shape_of(policy.model.config.to_dict()), freeze=frozen, optimizer="muon")
    assert mem.state(s, 1).moments == moments
    taken = {t.name for t in s.parameters.trained if of_muon(t)}
    assert taken == {name for name, p in named if muon.takes(name, p)}
    assert moments < mem.state(s.changed(optimizer="adamw"), 1).moments


def test_weights_in_4_bits_are_exact(tmp_path: Path) -> None:
    """Values, scales, their scales and tables: every storage that the loaded model holds."""
    pytest.importorskip("bitsandbytes")
    model = saved_bytes.build("qwen2_5_vl", tied=True)
    model.save_pretrained(tmp_path)
    options = nf4.options(model, torch.float32)
    loaded = type(model).from_pretrained(tmp_path, quantization_config=options, device_map={"": "cpu"}, dtype=torch.float32)
    nf4.settle(loaded)
    policy = saved_bytes.policy_of(loaded, compute=torch.float32)
    add_adapters(policy, LoraSpec(rank=4, alpha=8.0), seed_of=lambda _: 0, base="")
    held = [p.data for p in loaded.parameters()]
    for layer in nf4.layers(loaded).values():
        q = layer.weight.quant_state
        held += [q.absmax, q.code, q.offset, q.state2.absmax, q.state2.code]
    weights = sum({t.data_ptr(): t.nbytes for t in held if t.numel()}.values())
    s = settings(shape=shape_of(model.config.to_dict()), dtype="float32", lora=Lora(rank=4), quantize="nf4")
    assert mem.state(s, 1).weights == weights
    assert weights < mem.state(s.changed(quantize="none"), 1).weights


def test_half_a_byte_and_its_scales_for_each_weight_of_a_large_model() -> None:
    """4.127 bits (arXiv:2305.14314, section 3), beside 1,092 bytes a matrix."""
    s = settings(lora=Lora(rank=16), quantize="nf4")
    taken = sum(t.count for t in s.parameters.frozen if t.quantised)
    assert saved_by_nf4(s) == pytest.approx((16 - 4.127) / 8 * taken, rel=1e-4)
    assert mem.casts(s) == mem.casts(s.changed(quantize="none")), "no copy of weights that never train, packed or not"
    assert mem.unpacked(s) == 6 * max(t.count for t in s.parameters.frozen if t.quantised)
    assert mem.unpacked(s.changed(quantize="none")) == 0
    assert mem.memory(s).peak < mem.memory(s.changed(quantize="none")).peak


def test_ten_bytes_for_each_trained_weight_of_a_large_model() -> None:
    s = settings(optimizer="adamw8bit")
    assert mem.state(s, 1).total / s.parameters.n_trained == pytest.approx(10, abs=0.05)
    assert mem.state(settings(), 1).total == 16 * s.parameters.n_trained
    assert mem.update(s, 1) == 0


def test_only_adamw_in_shards_takes_more_than_the_state() -> None:
    """One kernel changes everything in place; torch's loop over many shards has one more set of numbers."""
    s = settings(gpus=8)
    assert mem.update(settings(), 1) == mem.update(s.changed(sharding="ddp"), 1) == 0
    assert mem.update(s.changed(sharding="fsdp"), 8) == 4 * -(-s.parameters.n_trained // 8)


@pytest.mark.parametrize("degree", [2, 3, 8])
def test_shards_are_those_of_the_first_rank(degree: int) -> None:
    """Every tensor is cut along its first dimension, as torch does for FSDP."""
    model = saved_bytes.build("qwen3_vl")
    first = sum(p.chunk(degree)[0].numel() for p in model.parameters())
    assert shard(tensors(shape_of(model.config.to_dict())), degree) == first


@pytest.mark.parametrize("family", FAMILIES)
def test_copies_of_weights_under_autocast(family: str) -> None:
    """What autocast keeps of matrices that train, without recomputation; the last layers' copies among them."""
    model = saved_bytes.build(family)
    measured = saved_bytes.measure(model, [(40, (9, 9))], compute=torch.bfloat16, frozen=("vision", "projector"))
    s = settings(shape=shape_of(model.config.to_dict()), freeze=("vision", "projector"))
    assert mem.casts(s) == (measured.weights, 0, 0)


def test_sharded_state() -> None:
    n = sum(t.count for t in tensors(named_shape("qwen2.5-vl-7b")))
    assert mem.state(settings(), 1).total == 16 * n
    assert mem.state(settings(gpus=8, sharding="fsdp"), 8).total == pytest.approx(16 * n / 8, rel=1e-3)
    zero3 = mem.state(settings(gpus=8, sharding="zero3"), 8)
    assert zero3.total == pytest.approx(20 * n / 8, rel=1e-3)
    zero2 = mem.state(settings(gpus=8, sharding="zero2"), 8)
    assert zero2.total == pytest.approx(4 * n + 16 * n / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("sharding", "offload", "left", "host"),
    [
        ("none", "optimizer", 8, 8),
        ("fsdp", "optimizer", 8, 8),
        ("fsdp", "all", 0, 16),
        ("zero3", "optimizer", 4, 16),
        ("zero3", "all", 0, 20),
    ],
)
def test_offload(sharding: str, offload: str, left: int, host: int) -> None:
    """Bytes per parameter on the GPU and in the machine's memory, over all ranks."""
    n = sum(t.count for t in tensors(named_shape("qwen2.5-vl-7b")))
    degree = 1 if sharding == "none" else 8
    found = mem.state(settings(gpus=8, sharding=sharding, offload=offload), degree)
    assert found.total * degree == pytest.approx(left * n, rel=1e-3)
    if (sharding, offload) == ("fsdp", "all"):  # weights and gradients of each shard take a power of two
        rounded = page_locked(4 * shard([t], degree) for t in tensors(named_shape("qwen2.5-vl-7b")))
        assert 4 * n < rounded * degree < 8 * n
        assert found.host == pytest.approx(8 * n / degree + 2 * rounded, rel=1e-3)
    else:
        assert found.host * degree == pytest.approx(host * n, rel=1e-3)


def test_copies_that_wait_for_each_other_keep_their_sums_on_the_gpu() -> None:
    """Where a step has several micro-batches and the weights are there several times."""
    one = settings(gpus=16, sharding="fsdp", offload="all", shard_size=8, groups=1)
    several = one.changed(groups=64, budget=one.prompt + one.answers * one.answer)
    assert len(one.rows) == 1 < len(several.rows)
    assert mem.state(one, 8).gradients == 0
    n = sum(t.count for t in one.parameters.trained)
    assert mem.state(several, 8).gradients == pytest.approx(4 * n / 8, rel=1e-3)
    assert mem.state(several.changed(gpus=8), 8).gradients == 0


def test_a_reference_is_a_second_model_but_not_with_adapters() -> None:
    n = sum(t.count for t in tensors(named_shape("qwen2.5-vl-7b")))
    assert mem.state(settings(reference=True), 1).reference == pytest.approx(2 * n, rel=1e-3)
    assert mem.state(settings(reference=True, dtype="float32"), 1).reference == 4 * n
    assert mem.state(settings(reference=True, lora=Lora(rank=8)), 1).reference == 0


@pytest.mark.parametrize(
    ("groups", "prompt", "answers", "answer", "budget"),
    [c for c in itertools.product((1, 3, 7), (5, 100), (1, 4, 9), (1, 30), (8, 150, 10_000))],
)
def test_rows_are_those_of_the_trainer(groups: int, prompt: int, answers: int, answer: int, budget: int) -> None:
    ours = deal(groups, prompt, answers, answer, budget)
    theirs = partition([(prompt, [answer] * answers)] * groups, budget)
    assert sorted(row.tokens for row in ours) == sorted(sum(prompt + answer * len(held) for _, held in row) for row in theirs)
    assert ours[0].tokens == max(row.tokens for row in ours)


def test_pairs_are_those_of_the_layout() -> None:
    from vlmrl.policy.pack import layout_of

    row = deal(3, 50, 4, 7, 120)[0]
    assert row.pairs == layout_of(row.groups).pairs
    assert row.tokens == layout_of(row.groups).tokens


def test_shards_inside_a_node_where_that_fits() -> None:
    small = settings(gpus=64, sharding="fsdp", recompute=True, prompt=1024)
    assert mem.memory(small).shard == 8
    large = small.changed(shape=named_shape("qwen2.5-vl-72b"))
    assert mem.memory(large).shard == 64
    assert mem.memory(small.changed(shard_size=16)).shard == 16


def test_a_frozen_tower_keeps_nothing_but_features() -> None:
    s = settings(freeze=("vision", "projector"))
    assert (mem.training(s).tower, mem.training(s).block) == (0, 0)
    assert mem.features(s) == s.vision_cache
    only_mergers = mem.training(settings(freeze=("vision",)))
    assert 0 < only_mergers.tower < mem.training(settings()).tower / 10


def test_the_peak_is_that_of_the_worst_phase() -> None:
    training = mem.memory(settings(gpus=8, sharding="fsdp", recompute=True))
    assert training.worst == "forward/backward"
    assert training.peak == training.phases["forward/backward"]
    assert training.phases["rollout"] == training.state.between + training.rollout + training.features + SLACK
    many = mem.memory(settings(lora=Lora(rank=8), recompute=True, prompt=8192, answers=64, groups=16, running=1024, budget=8192))
    assert many.worst == "rollout"
    alone = mem.memory(settings(recompute=True))
    assert alone.worst == "forward/backward"
    assert alone.phases["update"] == 16 * settings().parameters.n_trained + alone.features + SLACK
    supervised = mem.memory(settings(engine="none"))
    assert "rollout" not in supervised.phases


def test_what_the_reference_engine_gathers() -> None:
    """With shards every rank holds all weights while it generates; vLLM divides them over tp."""
    n = sum(t.count for t in tensors(named_shape("qwen2.5-vl-72b")))
    s = settings(shape=named_shape("qwen2.5-vl-72b"), gpus=64, sharding="fsdp")
    assert mem.memory(s).rollout > 2 * n
    vllm = mem.memory(s.changed(engine="vllm"))
    assert 2 * n / 8 < vllm.rollout < 2 * n / 2


def test_vllm_takes_the_fewest_gpus_with_room_for_a_group() -> None:
    s = settings(engine="vllm", gpus=8, sharding="fsdp", shape=named_shape("qwen2.5-vl-32b"))
    between = mem.state(s, 8).between
    tp = mem.tensor_parallel(s, between)
    assert mem.vllm_room(s, between, tp) >= mem.group_kv(s, tp)
    assert tp == 1 or mem.vllm_room(s, between, tp // 2) < mem.group_kv(s, tp // 2)
    assert mem.tensor_parallel(s.changed(tp=8), between) == 8


def test_vllm_beside_the_trainer_keeps_its_share_in_every_phase() -> None:
    s = settings(engine="vllm", recompute=True, lora=Lora(rank=8))
    asleep, awake = mem.memory(s), mem.memory(s.changed(vllm_keeps=0.25))
    share = s.gpu.memory // 4
    assert awake.rollout == 0
    assert awake.phases == {name: asleep.phases[name] + share for name in ("forward/backward", "update")}
    assert awake.parts == asleep.parts | {"rollout": 0, "vllm": share}
    n = s.parameters.n_trained + s.parameters.n_frozen
    assert mem.vllm_room(s.changed(vllm_keeps=0.25), 10**12, 1) == share - SLACK - 2 * n


def test_gpus_name_their_source() -> None:
    for gpu in GPUS.values():
        assert "NVIDIA" in gpu.source
        assert gpu.bf16 > gpu.fp32
        assert gpu.link >= gpu.host or gpu.link == gpu.host


def test_rows_that_ranks_share() -> None:
    """What the decoder keeps is divided; the owner of a row has its media and all of its embeddings."""
    alone = settings(gpus=8, sharding="fsdp", recompute=True, prompt=32768, answer=512, budget=36864)
    shared = alone.changed(sequence=4)
    one, four = mem.training(alone), mem.training(shared)
    assert four.kept == pytest.approx(one.kept / 4 + 2 * alone.shape.hidden * alone.row.tokens, rel=1e-6)
    assert four.layer == pytest.approx(one.layer / 4, rel=1e-6)
    assert (four.tower, four.head) == (one.tower, one.head)


def test_a_fixed_order_of_summation_takes_memory_with_flash_attention() -> None:
    """Of a row of one long sequence, in backward alone."""
    long = settings(groups=1, answers=1, prompt=35_000, answer=1_000, budget=36_000, recompute=True)
    free = long.changed(deterministic=False)
    more = mem.training(long).layer - mem.training(free).layer
    assert more == 4 * (36_000 + 128) * 28 * 128 * 4, "five shares of the keys where there is one"
    assert mem.training(long.changed(backend="merge")) == mem.training(free.changed(backend="merge"))
    assert mem.memory(long).phases["rollout"] == mem.memory(free).phases["rollout"]
