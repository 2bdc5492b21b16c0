"""The config of a real model with all sizes small: kinds of layers, geometry of pictures, vocabulary and heads stay as they are."""

from __future__ import annotations

import copy
from typing import Any

HIDDEN = 64
TEXT: dict[str, int] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "num_attention_heads": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "global_head_dim": 32,
    "attention_chunk_size": 16,
}
CAPPED: dict[str, int] = {
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "hidden_size_per_layer_input": 8,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
"""These may be smaller, or zero for what a model does not have."""
TOWER: dict[str, int] = {
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_heads": 2,
    "num_hidden_layers": 2,
    "depth": 2,
    "out_hidden_size": HIDDEN,
    "head_dim": 16,
}
WHOLE: dict[str, int] = {"projector_hidden_size": HIDDEN, "projection_dim": HIDDEN}
WINDOW = 12
"""Columns of a sliding window: fewer than a prompt with a picture has."""
LAYERS = 4
"""Of a decoder, unless a kind of layer comes later."""


def shrunk(config: Any) -> Any:
    """A copy with small sizes."""
    out = copy.deepcopy(config)
    _decoder(out.get_text_config())
    tower = getattr(out, "vision_config", None)
    if tower is not None:
        _tower(tower)
    _given(out, WHOLE)
    return out


def _given(config: Any, sizes: dict[str, int]) -> None:
    """Set what the config has."""
    for name, size in sizes.items():
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, size)


def _decoder(text: Any) -> None:
    before = int(text.num_hidden_layers)
    kinds = list(getattr(text, "layer_types", None) or [])
    first = max((kinds.index(kind) for kind in set(kinds)), default=0)
    layers = min(before, max(LAYERS, first + 1))
    for name, value in list(vars(text).items()):
        if isinstance(value, list | tuple) and len(value) == before:
            setattr(text, name, list(value)[:layers])
    text.num_hidden_layers = layers
    _given(text, TEXT)
    for name, most in CAPPED.items():
        if isinstance(getattr(text, name, None), int):
            setattr(text, name, min(most, getattr(text, name)))
    shared = getattr(text, "num_kv_shared_layers", None)
    if shared:
        text.num_kv_shared_layers = layers // 2
    if "sliding_attention" in kinds:
        text.sliding_window = WINDOW
    rope = getattr(text, "rope_parameters", None)
    parts = [part for part in (rope, *(rope or {}).values()) if isinstance(part, dict)]
    head = 32 if any(part.get("partial_rotary_factor", 1.0) < 1 for part in parts) else 16
    if getattr(text, "head_dim", None) is not None:
        text.head_dim = head
    three = "mrope_section" in getattr(type(text), "ignore_keys_at_rope_validation", ())
    for part in parts:
        _rope(part, three, int((head if getattr(text, "head_dim", None) is not None else 16) * part.get("partial_rotary_factor", 1.0)) // 2)


def _rope(part: dict[str, Any], three: bool, frequencies: int) -> None:
    """Sections for time, height and width that fit, where there are `three`; factors for each frequency are left out."""
    if three or part.get("mrope_section"):
        quarter = frequencies // 4
        part["mrope_section"] = [frequencies - 2 * quarter, quarter, quarter]
    if part.get("rope_type") == "longrope":
        part["rope_type"] = "default"


def _tower(tower: Any) -> None:
    layers = next((getattr(tower, name) for name in ("depth", "num_hidden_layers") if isinstance(getattr(tower, name, None), int)), 2)
    wide = "embed_dim" if isinstance(getattr(tower, "embed_dim", None), int) else "hidden_size"
    if wide == "embed_dim":
        tower.hidden_size = HIDDEN  # what comes out (Qwen2-VL)
    setattr(tower, wide, 32)
    _given(tower, TOWER)
    for name in ("deepstack_visual_indexes", "fullatt_block_indexes"):
        marked = getattr(tower, name, None)
        if marked:
            setattr(tower, name, [0, 1] if name.startswith("deepstack") else [1])
    if layers > 2 and isinstance(getattr(tower, "vision_feature_layer", None), int):
        tower.vision_feature_layer = -1
