"""Floating-point operations of any vision-language model of transformers, from its config: `benchmarks.step.flops` without Qwen's shapes.

The model is made on the meta device, without memory, and its modules are read: linear layers and convolutions by their weights, experts by
those that a token takes, attention by the width of its output and the columns that its kind of layer sees, delta nets by their recurrence.
A multiplication and an addition are two operations; norms, activations, rotary embeddings, embeddings and what a kernel computes and throws
away (masked pairs, padding) are left out, as there. Pictures that see themselves (Gemma) add pairs that are not counted either.

Letters: P prompt tokens, G answers of one prompt, C tokens of each answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.step.flops import TRAINING, Flops, Plan, StepFlops
from vlmrl.extras.families import probe

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
Segment = tuple[int, int, int]
"""(first, last, how often): queries at these positions of a row, the last one not among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """What of a decoder layer decides its cost."""

    kind: str
    weights: float
    """Numbers that a token is multiplied with: of linear layers, convolutions and the experts that it takes."""
    attention: int
    """Heads x head dimension of the values; 0 without attention."""
    recurrence: int
    """Operations per token of a state that is carried on."""
    window: int | None
    """Columns of a sliding window or of a chunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionShape:
    """What of a tower and its projector decides their cost."""

    patch: int
    """Weights that make a patch."""
    blocks: int
    """Weights that a patch is multiplied with in all blocks."""
    attention: int
    """Heads x head dimension, summed over all blocks."""
    projector: int
    """Weights that a visual token is multiplied with."""
    classes: int
    """Tokens of a tile beside its patches: 1 with a class token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyShape:
    """A model by its modules."""

    layers: tuple[LayerShape, ...]
    beside: int
    """Weights of the decoder outside of its layers (inputs per layer of Gemma 4)."""
    head: int
    vision: VisionShape


def family_shape(config: Any) -> FamilyShape:
    """Sizes from a transformers config of any model type that `AutoModelForImageTextToText` knows. No weights are read."""
    import torch
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    text = model.config.get_text_config()
    layers = probe.decoder_layers(model)
    inside = {id(p) for layer, _ in layers for p in layer.parameters()}
    head = model.get_output_embeddings().weight
    beside = [p for _, p in _weights(model.get_decoder()) if id(p) not in inside and p is not head]
    decoder = inside | {id(p) for p in beside} | {id(head)}
    return FamilyShape(
        layers=tuple(_layer(layer, kind, text) for layer, kind in layers),
        beside=sum(p.numel() for p in beside),
        head=head.numel(),
        vision=_vision(model, decoder),
    )


def _layer(layer: Any, kind: str, text: Any) -> LayerShape:
    taken = next((int(n) for name in ("num_experts_per_tok", "top_k_experts") if (n := getattr(text, name, None))), 1)
    weights = sum(p.numel() * (taken / p.shape[0] if p.ndim == 3 and not convolution else 1.0) for convolution, p in _weights(layer))
    [mixer] = probe.mixers(layer)
    state = _recurrence(mixer)
    out = getattr(mixer, "o_proj", None) or getattr(mixer, "out_proj", None)
    width = 0 if state or hasattr(mixer, "conv") or out is None else int(out.in_features)
    window = {SLIDING: getattr(text, "sliding_window", None), CHUNKED: getattr(text, "attention_chunk_size", None)}.get(kind)
    return LayerShape(kind=kind, weights=weights, attention=width, recurrence=state, window=window)


def _recurrence(mixer: Any) -> int:
    """A gated delta rule: per value head a state [key, value] is decayed, read, corrected by an outer product and read again
    (arXiv:2412.06464, equation 10)."""
    heads, key, value = (getattr(mixer, name, 0) for name in ("num_v_heads", "head_k_dim", "head_v_dim"))
    return int(heads * (7 * key * value))


def _weights(module: Any) -> Iterator[tuple[bool, Any]]:
    """(whether it is a convolution's, tensor) of what inputs are multiplied with: matrices and stacks of them, no embeddings."""
    import torch

    for part in module.modules():
        if not isinstance(part, torch.nn.Embedding):
            convolution = isinstance(part, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d)
            yield from ((convolution, p) for p in part.parameters(recurse=False) if p.ndim > 1)


_POSITIONS = ("position", "pos_embed", "class_embedding", "cls_token", "newline", "probe", "query")
"""Tensors of a tower that are added and not multiplied with, by parts of their names."""


def _vision(model: Any, decoder: set[int]) -> VisionShape:
    named = [(name, p) for name, p in model.named_parameters() if id(p) not in decoder]
    kept = [(n, p) for n, p in named if p.ndim > 1 and "embed_tokens" not in n and not any(mark in n for mark in _POSITIONS)]
    patch = sum(p.numel() for name, p in kept if _first(name))
    projector = sum(p.numel() for name, p in kept if not _first(name) and _behind(name))
    whole = sum(p.numel() for _, p in kept)
    return VisionShape(
        patch=patch,
        blocks=whole - patch - projector,
        projector=projector,
        attention=sum(_widths(model, decoder)),
        classes=int(any(mark in name for name, _ in named for mark in ("class_embedding", "cls_token"))),
    )


def _behind(name: str) -> bool:
    """Whether a tensor of the tower comes behind its blocks and meets visual tokens in place of patches."""
    return probe.part_of(name) == "projector" or "downsample" in name or "vision_adapter" in name


def _first(name: str) -> bool:
    return any(mark in name for mark in ("patch_embed", "patch_conv", "patch_embedder"))


def _widths(model: Any, decoder: set[int]) -> Iterator[int]:
    """Of every attention outside of the decoder: rows of the matrix behind it."""
    for name, module in model.named_modules():
        steps = name.removesuffix(".linear").split(".")
        behind = steps[-1] in ("o_proj", "out_proj", "proj", "projection_layer") and "att" in ".".join(steps[-2:])
        if behind and hasattr(module, "in_features") and id(module.weight) not in decoder:
            yield module.in_features


def pairs(layer: LayerShape, first: int, last: int) -> int:
    """(query, key) pairs that attention of a layer joins for queries at these positions of a row."""
    if not layer.attention:
        return 0
    window = layer.window if layer.kind in (SLIDING, CHUNKED) else None
    if window is None:
        return (first + 1 + last) * (last - first) // 2
    if layer.kind == CHUNKED:
        return sum(i % window + 1 for i in range(first, last))
    return sum(min(i + 1, window) for i in range(first, last))


def decoder_flops(shape: FamilyShape, segments: Sequence[Segment], scored: int) -> Flops:
    """One forward pass of the decoder over these queries, and of the head over `scored` of them."""
    tokens = sum((last - first) * times for first, last, times in segments)
    weights = sum(layer.weights for layer in shape.layers) + shape.beside
    joined = sum(4.0 * layer.attention * pairs(layer, first, last) * times for layer in shape.layers for first, last, times in segments)
    states = sum(float(layer.recurrence) for layer in shape.layers) * tokens
    return Flops(linear=2.0 * weights * tokens + states, attention=joined, head=2.0 * shape.head * scored)


def vision_flops(shape: VisionShape, *, patches: int, tiles: int, tokens: int) -> Flops:
    """One forward pass of tower and projector over a medium. Windows within a tile (Qwen2.5-VL) are counted as the whole tile:
    `benchmarks.step.flops.tower_flops` knows them. Patches that are merged midway (MiniCPM-V) are counted as if that came last.

    Args:
        patches: of all tiles, with those that a processor fills up with.
        tiles: parts of equal size whose patches see each other: tiles, frames, temporal steps; 1 for a whole picture.
        tokens: what the projector is applied to: visual tokens; in LLaVA all patches.
    """
    seen = patches + tiles * shape.classes
    products = patches * shape.patch + seen * shape.blocks + tokens * shape.projector
    return Flops(vision=2.0 * products + 4.0 * shape.attention * seen * seen / tiles)


def family_flops(
    prompt: int, group: int, completion: int, shape: FamilyShape, plan: Plan, *, media: Sequence[Mapping[str, int]] = ()
) -> StepFlops:
    """A step as in `benchmarks.step.flops.flops`: rollout of G answers of C tokens, one update on them, every weight trained.

    Args:
        media: of the prompt, each the arguments of `vision_flops`.

    Raises:
        ValueError: a count below 1.
    """
    if min(prompt, group, completion) < 1:
        raise ValueError(f"prompt, group and completion must be at least 1, got {prompt}, {group}, {completion}")
    row, scored = prompt + completion, group * completion
    update = [(0, row, group)] if plan.layout == "repeat" else [(0, prompt, 1), (prompt, row, group)]
    prefills = group if plan.prefill == "answer" else 1
    rollout = [(0, prompt, prefills), (prompt, row - 1, group)]
    encodings = group if plan.tower == "answer" else 1
    seen = Flops(vision=math.fsum(vision_flops(shape.vision, **one).vision for one in media)).times(encodings)
    return StepFlops(
        rollout=decoder_flops(shape, rollout, scored) + seen,
        update=decoder_flops(shape, update, scored).times(TRAINING) + seen.times(TRAINING),
    )
