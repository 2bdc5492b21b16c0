"""What the trainer's packed forward keeps for backward and what is alive at most, in it and in a rollout: tiny models of any width."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from vlmrl.compat import ensure_torchvision
from vlmrl.extras.plan.model import known_shapes
from vlmrl.extras.scale import offload
from vlmrl.families.registry import FAMILIES
from vlmrl.policy import nf4
from vlmrl.policy.attention import attach
from vlmrl.policy.forward import shared_prefix
from vlmrl.policy.load import freeze
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec, Policy, ProcessorBundle
from vlmrl.policy.pack import PackedBatch, PositionSpec, Row, pack_shared
from vlmrl.policy.precision import keep_stream_wide, settle_types
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import PARTS, GenerationSettings, MediaHandle, MediaKind, Prompt, Request, Sample

PAD = {"image": 60, "video": 61}


def text_config(family: str, *, hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocab: int = 64) -> dict[str, Any]:
    size = hidden // heads
    section = [size // 2 - 2 * (size // 6), size // 6, size // 6]
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": section}
    out: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rope_parameters": rope,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    if family == "qwen3_vl":
        out["head_dim"] = size
        rope["mrope_interleaved"] = True
    if family == "qwen3_5":
        out |= {"head_dim": 2 * size, "linear_num_key_heads": kv_heads, "linear_num_value_heads": heads}
        out |= {"linear_key_head_dim": size, "linear_value_head_dim": size}
        rope |= {"mrope_interleaved": True, "partial_rotary_factor": 0.5}
    return out


def vision_config(family: str, out: int, *, hidden: int, depth: int, heads: int, mlp: int) -> dict[str, Any]:
    if family == "qwen2_vl":
        return {"depth": depth, "embed_dim": hidden, "hidden_size": out, "num_heads": heads, "mlp_ratio": mlp // hidden, "patch_size": 14}
    shared = {"depth": depth, "hidden_size": hidden, "out_hidden_size": out, "num_heads": heads, "intermediate_size": mlp}
    if family == "qwen2_5_vl":
        return shared | {"window_size": 112, "fullatt_block_indexes": [depth - 1], "patch_size": 14, "tokens_per_second": 2}
    deep = {"deepstack_visual_indexes": [0, 1]} if family == "qwen3_vl" else {}
    return shared | deep | {"patch_size": 16, "num_position_embeddings": 64}


def build(family: str, *, tied: bool = False, vision: dict[str, Any] | None = None, **text: Any) -> Any:
    """A model of transformers, float32, with random weights."""
    ensure_torchvision()
    import transformers

    sizes = {"hidden": 128, "layers": 4, "heads": 4, "kv_heads": 2, "mlp": 256} | text
    tower = {"hidden": 64, "depth": 3, "heads": 4, "mlp": 128} | (vision or {})
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL", "qwen3_5": "Qwen3_5"}[family]
    config = getattr(transformers, f"{name}Config")(
        text_config=text_config(family, **sizes),
        vision_config=vision_config(family, sizes["hidden"], **tower),
        image_token_id=PAD["image"],
        video_token_id=PAD["video"],
        tie_word_embeddings=tied,
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def published(name: str) -> Any:
    """A published model without memory, on the meta device."""
    ensure_torchvision()
    import transformers

    config = transformers.AutoConfig.for_model(**known_shapes()[name]["config"])
    with torch.device("meta"):
        return transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)


@dataclass(frozen=True)
class Patches:
    pixel_values: np.ndarray


class Store:
    """Random patches under keys."""

    def __init__(self, width: int):
        self.width = width
        self.held: dict[str, Patches] = {}

    def get_key(self, key: str) -> Patches:
        return self.held[key]

    def image(self, grid: tuple[int, int, int]) -> MediaHandle:
        return self.medium("image", grid)

    def medium(self, kind: MediaKind, grid: tuple[int, int, int]) -> MediaHandle:
        key = f"{len(self.held)}"
        self.held[key] = Patches(np.random.default_rng(len(self.held)).random((int(np.prod(grid)), self.width), dtype=np.float32))
        return MediaHandle(kind=kind, key=key, grid_thw=grid, tokens=int(np.prod(grid)) // 4)


def policy_of(model: Any, *, compute: torch.dtype, backend: str = "merge") -> Policy:
    attach(model, "sdpa", device=torch.device("cpu"), compute=compute)
    bundle = ProcessorBundle(
        family=FAMILIES[model.config.model_type],
        processor=None,
        tokenizer=None,
        patch_size=14,
        merge_size=2,
        temporal_patch_size=2,
        pad_ids=PAD,  # pyright: ignore[reportArgumentType]
        special_ids=frozenset(),
        forbidden_ids=(),
        end_ids=(0,),
        fingerprint="",
    )
    return Policy(
        model=model,
        bundle=bundle,
        positions=PositionSpec(merge_size=2, tokens_per_second=None, per_step=model.config.model_type == "qwen3_vl"),
        device=torch.device("cpu"),
        deepstack=len(getattr(model.config.vision_config, "deepstack_visual_indexes", ())),
        compute=compute,
        prefix_backend=backend,  # pyright: ignore[reportArgumentType]
    )


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A policy with one packed row."""

    policy: Policy
    batch: PackedBatch
    cache: VisionCache

    def forward(self) -> torch.Tensor:
        """The training forward."""
        return shared_prefix(self.policy, self.batch, self.cache, temperature=1.0, forbidden=(), train=True).logp_BT


def ready(
    model: Any,
    groups: list[tuple[int, tuple[int, ...]]],
    *,
    compute: torch.dtype = torch.float32,
    native: bool = False,
    recompute: bool = False,
    chunk: int | None = None,
    backend: str = "merge",
    grid: tuple[int, int, int] | None = None,
    frozen: tuple[str, ...] = (),
    lora: LoraSpec | None = None,
) -> Ready:
    """The packed row of groups of (prompt, answers) tokens; with `grid` every prompt holds a picture. `native`: parameters in `compute`
    instead of autocast."""
    policy = policy_of(model, compute=torch.float32 if native else compute, backend=backend)
    policy.vision_chunk_patches = chunk
    store = Store(3 * 2 * model.config.vision_config.patch_size**2)
    trains = [part for part in PARTS if part not in frozen and lora is None]
    settle_types(model, family=policy.bundle.family, compute=policy.compute, trains=trains)
    keep_stream_wide(model)
    if lora is not None:
        add_adapters(policy, lora, seed_of=lambda _: 0, base="")
    freeze(policy, frozen)
    if native:
        model.to(compute)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train(recompute)
    rows: list[Row] = []
    for g, (length, answers) in enumerate(groups):
        media, spans, ids = (), (), [1 + i % 50 for i in range(length)]
        if grid is not None:
            handle = store.image(grid)
            media, spans = (handle,), ((1, 1 + handle.tokens),)
            ids[1 : 1 + handle.tokens] = [PAD["image"]] * handle.tokens
        sample = Sample(id=f"{g}", question="", task="", answer_type="", answer="", gt={}, media=())
        prompt = Prompt(sample=sample, ids=tuple(ids), media=media, spans=spans, answer_format="")
        rows += [Row(index=0, group=g, prompt=prompt, response=tuple(1 + i % 50 for i in range(n))) for n in answers]
    batch = pack_shared(rows, policy.positions, policy.device, pad_id=0)
    return Ready(policy=policy, batch=batch, cache=VisionCache(store, budget_bytes=0))


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Bytes that forward kept."""

    activations: int
    weights: int
    """16-bit copies of weights."""


def measure(model: Any, groups: list[tuple[int, tuple[int, ...]]], **how: Any) -> Saved:
    """What one forward keeps, each storage once. Arguments as `ready`."""
    run = ready(model, groups, **how)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    shapes = {tuple(p.shape) for p in model.parameters() if p.ndim >= 2}
    shapes |= {s[::-1] for s in shapes}
    seen: dict[int, tuple[torch.UntypedStorage, torch.dtype, tuple[int, ...]]] = {}

    def keep(tensor: torch.Tensor) -> None:
        # Storages alone, and nothing for the graph: a tensor holds its graph, a graph its hooks, and no collector sees such a circle.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage, tensor.dtype, tuple(tensor.shape)

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
        run.forward()
    size = {True: 0, False: 0}
    for storage, dtype, shape in seen.values():
        cast = not how.get("native") and dtype == torch.bfloat16 and shape in shapes
        size[cast] += storage.nbytes()
    return Saved(activations=size[False], weights=size[True])


class Live(TorchDispatchMode):
    """Bytes of all storages that are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.fresh = itertools.count()
        self.now = 0
        self.most = 0

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.held:
            self.held[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, key)

    def number(self, storage: Any) -> int:
        """Another one for every storage that ever was: addresses come again."""
        return self.numbers.setdefault(storage._cdata, next(self.fresh))

    def _gone(self, key: int) -> None:
        self.now -= self.held.pop(key, 0)
        self.numbers.pop(key, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.add, out)
        return out


def peak(model: Any, groups: list[tuple[int, tuple[int, ...]]], **how: Any) -> int:
    """Most bytes alive in forward and backward of a micro-batch that is not the first: gradients are there. Arguments as `ready`."""
    run, live = ready(model, groups, **how), Live()
    for parameter in model.parameters():
        live.add(parameter.data)
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
            live.add(parameter.grad)
    with live:
        run.forward().sum().backward()
    return live.most


@dataclass(frozen=True, kw_only=True)
class Away:
    """Of a pass whose activations wait elsewhere."""

    host: int
    """Bytes that wait there when forward has ended."""
    once: int
    """Of those, with tensors that share a storage counted once: what `vlmrl plan` counts."""
    device: int
    """Most bytes alive, without those."""


def peak_away(model: Any, groups: list[tuple[int, tuple[int, ...]]], **how: Any) -> Away:
    """As `peak`, under `offload.offloaded`. What was sent away is not counted as alive; what comes back is."""
    run, live = ready(model, groups, **how), Live()
    for parameter in model.parameters():
        live.add(parameter.data)
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
            live.add(parameter.grad)
    stay = {offload._storage(parameter) for parameter in model.parameters()}
    sizes: list[int] = []
    sources: dict[tuple[int, int], int] = {}

    def send(tensor: torch.Tensor) -> Any:
        with _disable_current_modes():
            kept = offload.take(tensor, stay)
        if isinstance(kept, offload.Away):
            storage = tensor.untyped_storage()
            sizes.append((kept.lead + offload._room(kept.host)) * kept.host.element_size())
            sources[live.number(storage), storage.nbytes()] = storage.nbytes()
        return kept

    def bring(kept: Any) -> torch.Tensor:
        with _disable_current_modes():
            back = offload.give_back(kept)
        if isinstance(kept, offload.Away):
            live.add(back)
        return back

    with live:
        with torch.autograd.graph.saved_tensors_hooks(send, bring):
            out = run.forward()
        host = sum(sizes)
        out.sum().backward()
    return Away(host=host, once=sum(sources.values()), device=live.most)


class Words:
    """A tokenizer whose ids say nothing."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def rollout_peak(policy: Policy, *, prompts: int, prompt: int, answers: int, answer: int, together: int = 256) -> int:
    """Most bytes alive while the reference engine generates `answers` of `answer` tokens, all as long as allowed, to each of `prompts`
    prompts of text; at most `together` answers at a time."""
    policy.bundle = replace(policy.bundle, tokenizer=Words(), forbidden_ids=policy.bundle.end_ids)
    sample = Sample(id="0", question="", task="", answer_type="", answer="", gt={}, media=())
    read = Prompt(sample=sample, ids=tuple(1 + i % 50 for i in range(prompt)), media=(), spans=(), answer_format="")
    requests = [Request(prompt=read, ks=tuple(range(answers)), seeds=tuple(range(n, n + answers))) for n in range(prompts)]
    engine, live = HFEngine(policy, VisionCache(Store(1), budget_bytes=0), max_num_seqs=together), Live()
    held = [p.data for p in policy.model.parameters()]
    for layer in nf4.layers(policy.model).values():
        q: Any = layer.weight.quant_state
        held += [q.absmax, q.code, q.offset, q.state2.absmax, q.state2.code]
    for tensor in held:
        live.add(tensor)
    with live:
        engine.generate(requests, GenerationSettings(max_new_tokens=answer))
    return live.most
