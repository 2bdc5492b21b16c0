"""Counts the floating-point operations of a GRPO step from a model's config: the ceiling that a measured speed-up is held against.

Counted are the matrix products (a multiplication and an addition are two operations): linear layers, attention over the pairs of
tokens that may see each other, the output head over the tokens that are scored, and the vision tower. Norms, activations,
rotary embeddings and the optimizer are left out; so are masked pairs that a kernel computes and throws away. A backward pass costs
twice its forward (arXiv:2001.08361, section 2.1); recomputed activations are not counted.

Letters: P prompt tokens (visual ones included), G answers of one prompt, C tokens of each answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vlmrl.policy.pack import attention_pairs

TRAINING = 3
"""Forward and backward in units of a forward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TowerShape:
    """What of a vision tower decides its cost. Sizes in features, `window` and `merge` in patches along a side."""

    depth: int
    hidden: int
    mlp: int
    mlp_matrices: int
    """3 with a gate (Qwen2.5-VL), 2 without (Qwen2-VL)."""
    patch_values: int
    """Numbers per patch: channels x frames x height x width."""
    merge: int
    out: int
    """Features of a visual token, the decoder's width."""
    window: int | None
    """None: every block attends to the whole frame."""
    full_blocks: tuple[int, ...]
    """Blocks that attend to the whole frame although there are windows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What of a decoder decides its cost."""

    layers: int
    hidden: int
    query: int
    """Query heads x head dimension."""
    key: int
    """Key (or value) heads x head dimension."""
    mlp: int
    vocabulary: int
    tower: TowerShape | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """Operations by what they are spent on."""

    linear: float = 0.0
    attention: float = 0.0
    head: float = 0.0
    vision: float = 0.0

    @property
    def total(self) -> float:
        return self.linear + self.attention + self.head + self.vision

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            linear=self.linear + other.linear,
            attention=self.attention + other.attention,
            head=self.head + other.head,
            vision=self.vision + other.vision,
        )

    def times(self, factor: float) -> Flops:
        """The same work `factor` times."""
        return Flops(linear=factor * self.linear, attention=factor * self.attention, head=factor * self.head, vision=factor * self.vision)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a trainer computes once per group and what it computes once per answer."""

    layout: Literal["repeat", "shared_prefix"]
    """Whether the training pass repeats the prompt for every answer or shares it."""
    prefill: Literal["group", "answer"] = "group"
    """Whether a rollout computes the prompt once per group or once per answer."""
    tower: Literal["group", "answer"] = "group"
    """The same for the vision tower, in rollout and in training."""


REPEAT = Plan(layout="repeat")
SHARED_PREFIX = Plan(layout="shared_prefix")
EVERYTHING_REPEATED = Plan(layout="repeat", prefill="answer", tower="answer")
"""Prompt and media G times in rollout and G times in training: a trainer that treats a group as G independent rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFlops:
    """The parts of a step on one group."""

    rollout: Flops
    update: Flops
    scoring: Flops = Flops()
    """A forward pass between them, of trainers that compute the old log-probs."""

    @property
    def total(self) -> float:
        return self.rollout.total + self.scoring.total + self.update.total


def model_shape(config: Any) -> ModelShape:
    """Sizes from a transformers config of the Qwen2-VL or Qwen2.5-VL family, or of a text model with the same decoder."""
    text = config.get_text_config()
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    vision = getattr(config, "vision_config", None)
    return ModelShape(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        query=text.num_attention_heads * head_dim,
        key=text.num_key_value_heads * head_dim,
        mlp=text.intermediate_size,
        vocabulary=text.vocab_size,
        tower=None if vision is None else _tower_shape(vision),
    )


def _tower_shape(vision: Any) -> TowerShape:
    gated = hasattr(vision, "fullatt_block_indexes")
    channels = vision.in_channels if hasattr(vision, "in_channels") else vision.in_chans
    return TowerShape(
        depth=vision.depth,
        hidden=vision.hidden_size if gated else vision.embed_dim,
        mlp=vision.intermediate_size if gated else int(vision.embed_dim * vision.mlp_ratio),
        mlp_matrices=3 if gated else 2,
        patch_values=channels * vision.temporal_patch_size * vision.patch_size**2,
        merge=vision.spatial_merge_size,
        out=vision.out_hidden_size if gated else vision.hidden_size,
        window=vision.window_size // vision.patch_size // vision.spatial_merge_size * vision.spatial_merge_size if gated else None,
        full_blocks=tuple(vision.fullatt_block_indexes) if gated else (),
    )


def decoder_flops(shape: ModelShape, *, tokens: int, pairs: int, scored: int) -> Flops:
    """One forward pass of the decoder.

    Args:
        tokens: tokens that pass through the layers.
        pairs: (query, key) pairs that attention joins.
        scored: tokens whose logits are computed.
    """
    weights = shape.hidden * (2 * shape.query + 2 * shape.key + 3 * shape.mlp)
    return Flops(
        linear=2.0 * shape.layers * weights * tokens,
        attention=4.0 * shape.layers * shape.query * pairs,
        head=2.0 * shape.hidden * shape.vocabulary * scored,
    )


def tower_flops(tower: TowerShape, grid_thw: tuple[int, int, int]) -> Flops:
    """One forward pass of the vision tower over a medium of (time, height, width) patches. Frames do not see each other."""
    t, h, w = grid_thw
    patches = t * h * w
    weights = 4 * tower.hidden**2 + tower.mlp_matrices * tower.hidden * tower.mlp
    full = t * (h * w) ** 2
    windowed = full if tower.window is None else t * _squares(h, tower.window) * _squares(w, tower.window)
    whole = tower.depth if tower.window is None else len(tower.full_blocks)
    pairs = whole * full + (tower.depth - whole) * windowed
    width = tower.hidden * tower.merge**2
    merged = patches // tower.merge**2
    products = patches * (tower.patch_values * tower.hidden + tower.depth * weights) + merged * width * (width + tower.out)
    return Flops(vision=2.0 * products + 4.0 * tower.hidden * pairs)


def _squares(side: int, window: int) -> int:
    """Sum of the squared lengths of the pieces that windows cut a side into."""
    whole, rest = divmod(side, window)
    return whole * window**2 + rest**2


def update_flops(shape: ModelShape, *, prompt: int, group: int, completion: int, layout: Literal["repeat", "shared_prefix"]) -> Flops:
    """Forward and backward of the decoder over one group of equally long answers, without the tower.

    `repeat` passes G (P + C) tokens, `shared_prefix` P + G C (arXiv:2506.05433).
    """
    if layout == "repeat":
        row = prompt + completion
        once = decoder_flops(shape, tokens=group * row, pairs=group * row * (row + 1) // 2, scored=group * completion)
    else:
        pairs = attention_pairs(prompt, [completion] * group)
        once = decoder_flops(shape, tokens=prompt + group * completion, pairs=pairs, scored=group * completion)
    return once.times(TRAINING)


def rollout_flops(shape: ModelShape, *, prompt: int, group: int, completion: int, prefills: int) -> Flops:
    """`prefills` passes over the prompt, then C - 1 decoding steps of every answer (the prefill gives the first token)."""
    start = decoder_flops(shape, tokens=prefills * prompt, pairs=prefills * prompt * (prompt + 1) // 2, scored=0)
    steps = completion - 1
    seen = steps * prompt + steps * (steps + 1) // 2
    return start + decoder_flops(shape, tokens=group * steps, pairs=group * seen, scored=group * completion)


def flops(
    prompt: int, group: int, completion: int, config: Any, plan: Plan = REPEAT, *, media: Sequence[tuple[int, int, int]] = ()
) -> StepFlops:
    """A whole step on one prompt: rollout of G answers of C tokens each, then one update on them; every weight trains.

    Args:
        prompt: P, visual tokens included.
        group: G.
        completion: C, the same for all answers.
        config: a transformers config, or the `ModelShape` of one.
        plan: what is computed once per group.
        media: grids (time, height, width) of the prompt's media, in patches.

    Raises:
        ValueError: a count below 1, or media without a tower.
    """
    if min(prompt, group, completion) < 1:
        raise ValueError(f"prompt, group and completion must be at least 1, got {prompt}, {group}, {completion}")
    shape = config if isinstance(config, ModelShape) else model_shape(config)
    if media and shape.tower is None:
        raise ValueError("media are given, but the model has no vision tower")
    seen = Flops()
    for grid in media:
        assert shape.tower is not None
        seen = seen + tower_flops(shape.tower, grid)
    encodings = group if plan.tower == "answer" else 1
    prefills = group if plan.prefill == "answer" else 1
    rollout = rollout_flops(shape, prompt=prompt, group=group, completion=completion, prefills=prefills)
    update = update_flops(shape, prompt=prompt, group=group, completion=completion, layout=plan.layout)
    return StepFlops(rollout=rollout + seen.times(encodings), update=update + seen.times(TRAINING * encodings))
