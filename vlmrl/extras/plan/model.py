"""Shapes of Qwen-VL models from a config.json, and their tensors: name, size and part of every parameter, adapters included."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from vlmrl.errors import ConfigError

Family = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
Part = Literal["vision", "projector", "language"]
FAMILIES: tuple[Family, ...] = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
SHAPES = Path(__file__).with_name("shapes.json")
"""Published configs of models that need not be there, by name."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a decoder layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tower:
    """The vision tower with its mergers."""

    depth: int
    hidden: int
    heads: int
    mlp: int
    patch: int = 14
    merge: int = 2
    temporal: int = 2
    channels: int = 3
    window: int = 0
    """Side of a window of attention in pixels (Qwen2.5-VL); 0: each temporal step attends as a whole."""
    full: int = 0
    """Blocks that attend over the whole temporal step in spite of `window`."""
    positions: int = 0
    """Learned patch positions (Qwen3-VL)."""
    deepstack: int = 0
    """Levels of features besides the merged ones (Qwen3-VL)."""

    @property
    def pixels(self) -> int:
        """Numbers of one patch: channels x frames x height x width."""
        return self.channels * self.temporal * self.patch**2


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What of a config decides sizes. Widths are in numbers, not in bytes."""

    family: Family
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    tied: bool
    """Whether the output matrix is the embedding."""
    tower: Tower

    @property
    def q(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of the keys of a token, and of its values."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter."""

    name: str
    size: tuple[int, ...]

    @property
    def count(self) -> int:
        """Numbers in it."""
        return math.prod(self.size)

    @property
    def part(self) -> Part:
        """The part that `freeze` of a stage counts it to."""
        if ".visual." not in self.name:
            return "language"
        return "projector" if ".merger." in self.name or ".deepstack_merger_list." in self.name else "vision"

    @property
    def matrix(self) -> bool:
        """Whether it is the weight of a linear layer within the decoder or the tower; embedding, head and positions are not."""
        return len(self.size) == 2 and "embed" not in self.name and not self.name.startswith("lm_head")

    @property
    def halved(self) -> bool:
        """Whether it has the type of the forward pass where it does not train (`policy.precision`): matrices and the biases beside them."""
        product = len(self.size) > 1 and "pos_embed" not in self.name
        return product or (self.name.endswith(".bias") and not any(mark in self.name for mark in ("norm", "ln_q")))

    @property
    def quantised(self) -> bool:
        """Whether `model.quantize` takes it: the weight of a linear layer within the decoder (`policy.nf4`)."""
        return len(self.size) == 2 and ".language_model.layers." in self.name and ".lora_" not in self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """Size and place of adapters."""

    rank: int
    targets: tuple[str, ...] = TARGETS
    vision: bool = False


@dataclass(frozen=True)
class Parameters:
    """A model's tensors, told apart by whether they train."""

    trained: tuple[Tensor, ...]
    frozen: tuple[Tensor, ...]

    @cached_property
    def parts(self) -> frozenset[Part]:
        """Parts of which something trains."""
        return frozenset(t.part for t in self.trained)

    @cached_property
    def n_trained(self) -> int:
        """Numbers that train."""
        return count(self.trained)

    @cached_property
    def n_frozen(self) -> int:
        """Numbers that do not."""
        return count(self.frozen)


def count(tensors: Iterable[Tensor], part: Part | None = None) -> int:
    """Numbers in all tensors, or in those of one part."""
    return sum(t.count for t in tensors if part is None or t.part == part)


def known_shapes() -> dict[str, dict[str, Any]]:
    """Name -> published config (`config`), where it is from (`source`) and how many parameters its files hold (`parameters`)."""
    return json.loads(SHAPES.read_text(encoding="utf-8"))


def named_shape(name: str) -> Shape:
    """A published model by its name.

    Raises:
        ConfigError: no such name.
    """
    known = known_shapes()
    if name not in known:
        raise ConfigError(f"--shape: expected one of {', '.join(known)}, got '{name}'")
    return shape_of(known[name]["config"])


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape in a config.json: flat, as on the hub, or with `text_config`, as transformers writes it now.

    Raises:
        ConfigError: another family, or a key is missing.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(f"config.json: model_type '{family}'; a plan knows {', '.join(FAMILIES)}")
    text: Mapping[str, Any] = config.get("text_config") or config
    try:
        heads, hidden = text["num_attention_heads"], text["hidden_size"]
        return Shape(
            family=family,
            hidden=hidden,
            layers=text["num_hidden_layers"],
            heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or (128 if family == "qwen3_vl" else hidden // heads),
            mlp=text["intermediate_size"],
            vocab=text["vocab_size"],
            tied=bool(config.get("tie_word_embeddings") or text.get("tie_word_embeddings")),
            tower=_tower(family, config["vision_config"]),
        )
    except KeyError as error:
        raise ConfigError(f"config.json: key {error} is missing") from error


def _tower(family: Family, vision: Mapping[str, Any]) -> Tower:
    hidden = vision["embed_dim"] if family == "qwen2_vl" else vision["hidden_size"]
    mlp = int(hidden * vision.get("mlp_ratio", 4)) if family == "qwen2_vl" else vision["intermediate_size"]
    return Tower(
        depth=vision["depth"],
        hidden=hidden,
        heads=vision["num_heads"],
        mlp=mlp,
        patch=vision.get("patch_size", 16 if family == "qwen3_vl" else 14),
        merge=vision.get("spatial_merge_size", 2),
        temporal=vision.get("temporal_patch_size", 2),
        channels=vision.get("in_channels", 3),
        window=vision.get("window_size", 112) if family == "qwen2_5_vl" else 0,
        full=len(vision.get("fullatt_block_indexes", (7, 15, 23, 31))) if family == "qwen2_5_vl" else 0,
        positions=vision.get("num_position_embeddings", 2304) if family == "qwen3_vl" else 0,
        deepstack=len(vision.get("deepstack_visual_indexes", (8, 16, 24))) if family == "qwen3_vl" else 0,
    )


# ---- tensors -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def tensors(shape: Shape) -> tuple[Tensor, ...]:
    """Every parameter, under the name that transformers gives it. A tied head is the embedding and stands once."""
    found = [*_decoder(shape), *_vision(shape)]
    if not shape.tied:
        found.append(Tensor("lm_head.weight", (shape.vocab, shape.hidden)))
    return tuple(found)


def _linear(name: str, out: int, inner: int, *, bias: bool) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (out, inner))
    if bias:
        yield Tensor(f"{name}.bias", (out,))


def decoder_layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    """Parameters of one decoder layer."""
    name = f"model.language_model.layers.{layer}"
    h, q, kv, f = shape.hidden, shape.q, shape.kv, shape.mlp
    biased = shape.family != "qwen3_vl"
    for target, out, inner in (("q_proj", q, h), ("k_proj", kv, h), ("v_proj", kv, h), ("o_proj", h, q)):
        yield from _linear(f"{name}.self_attn.{target}", out, inner, bias=biased and target != "o_proj")
    if not biased:
        yield Tensor(f"{name}.self_attn.q_norm.weight", (shape.head_dim,))
        yield Tensor(f"{name}.self_attn.k_norm.weight", (shape.head_dim,))
    for target, out, inner in (("gate_proj", f, h), ("up_proj", f, h), ("down_proj", h, f)):
        yield from _linear(f"{name}.mlp.{target}", out, inner, bias=False)
    yield Tensor(f"{name}.input_layernorm.weight", (h,))
    yield Tensor(f"{name}.post_attention_layernorm.weight", (h,))


def _decoder(shape: Shape) -> Iterator[Tensor]:
    yield Tensor("model.language_model.embed_tokens.weight", (shape.vocab, shape.hidden))
    for layer in range(shape.layers):
        yield from decoder_layer(shape, layer)
    yield Tensor("model.language_model.norm.weight", (shape.hidden,))


def _norm(name: str, width: int, shape: Shape) -> Iterator[Tensor]:
    """A norm of the tower: RMS in Qwen2.5-VL, with a bias in the others."""
    yield Tensor(f"{name}.weight", (width,))
    if shape.family != "qwen2_5_vl":
        yield Tensor(f"{name}.bias", (width,))


def vision_block(shape: Shape, block: int) -> Iterator[Tensor]:
    """Parameters of one block of the tower."""
    tower, name = shape.tower, f"model.visual.blocks.{block}"
    h, f = tower.hidden, tower.mlp
    yield from _norm(f"{name}.norm1", h, shape)
    yield from _norm(f"{name}.norm2", h, shape)
    yield from _linear(f"{name}.attn.qkv", 3 * h, h, bias=True)
    yield from _linear(f"{name}.attn.proj", h, h, bias=True)
    up, down = {"qwen2_vl": (("fc1",), "fc2"), "qwen2_5_vl": (("gate_proj", "up_proj"), "down_proj")}.get(
        shape.family, (("linear_fc1",), "linear_fc2")
    )
    for target in up:
        yield from _linear(f"{name}.mlp.{target}", f, h, bias=True)
    yield from _linear(f"{name}.mlp.{down}", h, f, bias=True)


def _vision(shape: Shape) -> Iterator[Tensor]:
    tower, name = shape.tower, "model.visual"
    h, wide = tower.hidden, tower.hidden * tower.merge**2
    yield Tensor(f"{name}.patch_embed.proj.weight", (h, tower.channels, tower.temporal, tower.patch, tower.patch))
    if shape.family == "qwen3_vl":
        yield Tensor(f"{name}.patch_embed.proj.bias", (h,))
        yield Tensor(f"{name}.pos_embed.weight", (tower.positions, h))
    for block in range(tower.depth):
        yield from vision_block(shape, block)
    first, second = ("linear_fc1", "linear_fc2") if shape.family == "qwen3_vl" else ("mlp.0", "mlp.2")
    yield from _norm(f"{name}.merger.{'norm' if shape.family == 'qwen3_vl' else 'ln_q'}", h, shape)
    yield from _linear(f"{name}.merger.{first}", wide, wide, bias=True)
    yield from _linear(f"{name}.merger.{second}", shape.hidden, wide, bias=True)
    for level in range(tower.deepstack):
        merger = f"{name}.deepstack_merger_list.{level}"
        yield from _norm(f"{merger}.norm", wide, shape)
        yield from _linear(f"{merger}.{first}", wide, wide, bias=True)
        yield from _linear(f"{merger}.{second}", shape.hidden, wide, bias=True)


def adapters(shape: Shape, lora: Lora) -> list[Tensor]:
    """A [rank, in] and B [out, rank] of every layer with an adapter."""
    out: list[Tensor] = []
    for t in tensors(shape):
        if not t.matrix:
            continue
        layer = t.name.removesuffix(".weight")
        if (t.part == "language" and layer.rsplit(".", 1)[-1] in lora.targets) or (t.part != "language" and lora.vision):
            out.append(Tensor(f"{layer}.lora_A.default.weight", (lora.rank, t.size[1])))
            out.append(Tensor(f"{layer}.lora_B.default.weight", (t.size[0], lora.rank)))
    return out


@lru_cache(maxsize=64)
def parameters(shape: Shape, *, freeze: tuple[str, ...] = (), lora: Lora | None = None) -> Parameters:
    """Which tensors train: those of the parts that are left; with adapters the adapters of those parts, and nothing else."""
    frozen_parts, base = set(freeze), tensors(shape)
    own = base if lora is None else adapters(shape, lora)
    trained = tuple(t for t in own if t.part not in frozen_parts)
    rest = [t for t in own if t.part in frozen_parts]
    return Parameters(trained, tuple(rest if lora is None else [*base, *rest]))
