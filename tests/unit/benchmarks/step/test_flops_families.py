"""Counted operations of every configuration against torch's own counter on its tiny model, and rows by hand.

What the counter sees and the count does not, each named here: columns that causal convolutions pad with, chunks in which a delta rule is
computed (bmm), experts of Llama 4 that no token takes, matrices that pool (Gemma 4), and masked pairs, which eager attention computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.step.flops import EVERYTHING_REPEATED, REPEAT, SHARED_PREFIX, flops
from benchmarks.step.flops_families import (
    FamilyShape,
    LayerShape,
    VisionShape,
    decoder_flops,
    family_flops,
    family_shape,
    pairs,
    vision_flops,
)
from vlmrl.compat import ensure_torchvision
from vlmrl.extras.families import generic
from vlmrl.extras.families.tiny import TINY

N = 40
PICTURE = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
NONE = VisionShape(patch=0, blocks=0, attention=0, projector=0, classes=0)
QWEN2, QWEN3, GEMMA4, MINICPM = (72, 1, 18), (60, 1, 15), (630, 1, 60), (480, 5, 30)
VISION: dict[str, tuple[int, int, int]] = {
    "qwen2_vl": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen3_vl": QWEN3,
    "qwen3_vl_moe": QWEN3,
    "qwen3_5": QWEN3,
    "qwen3_5_moe": QWEN3,
    "internvl": (48, 3, 12),
    "glm4v": QWEN2,
    "glm46v": QWEN2,
    "glm4v_moe": QWEN2,
    "gemma3": (64, 1, 16),
    "gemma4": GEMMA4,
    "gemma4_moe": GEMMA4,
    "gemma4_causal": GEMMA4,
    "smolvlm": (320, 5, 80),
    "llava_onevision": (80, 5, 80),
    "mistral3": (96, 1, 24),
    "minicpmv4_6": MINICPM,
    "minicpmv4_7": MINICPM,
    "lfm2_vl": (256, 1, 15),
    "llama4": (80, 5, 20),
}
"""(patches, tiles, tokens) of the picture."""
APART = {"qwen2_5_vl": 0.08, "minicpmv4_6": 0.35, "minicpmv4_7": 0.35}
"""Towers whose windows or merging in the middle are not counted: how far off, of all operations, the count may be."""


@pytest.fixture
def tiny(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any, Any, Any]:
    """(name, config, processor, model) with eager attention, whose products the counter sees."""
    ensure_torchvision()
    from transformers import AutoModelForImageTextToText

    name = request.param
    if name == "smolvlm":
        monkeypatch.setattr("transformers.models.smolvlm.processing_smolvlm.num2words", lambda number, **_: str(number), raising=False)
    config, processor = TINY[name]()
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return name, config, processor, model


def counted(call: Any) -> dict[str, dict[str, int]]:
    """Module -> operation -> count."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call()
    return {module: {str(op).removeprefix("aten."): n for op, n in ops.items()} for module, ops in counter.get_flop_counts().items()}


@pytest.mark.parametrize("tiny", list(TINY), indirect=True)
def test_against_the_counter(tiny: tuple[str, Any, Any, Any]) -> None:
    name, config, processor, model = tiny
    shape = family_shape(config)
    ids = torch.randint(3, 50, (1, N))
    found = counted(lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False))
    ours = decoder_flops(shape, [(0, N, 1)], N)
    dense = sum(4.0 * layer.attention * N * N for layer in shape.layers)
    states = N * sum(layer.recurrence for layer in shape.layers)
    every = found["Global"]
    attention = sum(ops.get("bmm", 0) for module, ops in found.items() if module.endswith(".self_attn"))
    assert attention == dense, "eager attention computes all pairs"
    spare = 2.0 * N * sum(p.numel() * (1 - 1 / p.shape[0]) for p in model.parameters() if p.ndim == 3) if name == "llama4" else 0.0
    padded = 1e-3 if "convolution" in every else 0.0
    rest = sum(every.values()) - (every["bmm"] if states else dense)
    assert rest == pytest.approx(ours.linear - states + ours.head + spare, rel=padded or 1e-12)
    assert (states > 0) == ("qwen3_5" in name or "minicpm" in name)

    encoded = generic.encode(processor, generic.placeholders(config), [{"role": "user", "content": [{"type": "image"}]}], [PICTURE])
    seen = counted(lambda: generic.features(generic.core_of(model), encoded.arguments[0], encoded.kinds[0]))["Global"]
    pooling = 2 * 70 * 630 * 32 if name.startswith("gemma4") else 0
    outside = 2 * 20 * model.multi_modal_projector.linear_1.weight.numel() if name == "llama4" else 0  # its forward applies it
    patches, tiles, tokens = VISION[name]
    ours = vision_flops(shape.vision, patches=patches, tiles=tiles, tokens=tokens).vision
    assert sum(seen.values()) - pooling + outside == pytest.approx(ours, rel=APART.get(name, 1e-12))


@pytest.mark.parametrize("tiny", ["qwen2_vl", "qwen2_5_vl"], indirect=True)
def test_a_step_is_that_of_the_count_with_qwens_shapes(tiny: tuple[str, Any, Any, Any]) -> None:
    _, config, _, _ = tiny
    shape = family_shape(config)
    for plan in (REPEAT, SHARED_PREFIX, EVERYTHING_REPEATED):
        ours, theirs = family_flops(11, 3, 4, shape, plan), flops(11, 3, 4, config, plan)
        for mine, other in ((ours.rollout, theirs.rollout), (ours.update, theirs.update)):
            assert (mine.linear, mine.attention, mine.head) == (other.linear, other.attention, other.head)


def test_pairs_by_kind_of_layer() -> None:
    def of(kind: str, window: int | None = None, attention: int = 8) -> LayerShape:
        return LayerShape(kind=kind, weights=1.0, attention=attention, recurrence=0, window=window)

    # queries at 2, 3, 4 of a row see 3, 4, 5 columns; the last 3; those of their chunk of 3 (2 | 3, 4)
    assert pairs(of("full_attention"), 2, 5) == 3 + 4 + 5
    assert pairs(of("sliding_attention", 3), 2, 5) == 3 + 3 + 3
    assert pairs(of("sliding_attention", 3), 0, 5) == 1 + 2 + 3 + 3 + 3
    assert pairs(of("chunked_attention", 3), 2, 5) == 3 + 1 + 2
    assert pairs(of("full_attention", 3), 2, 5) == 12, "a window is that of sliding layers"
    assert pairs(of("linear_attention", attention=0), 2, 5) == 0


def test_a_step_by_hand() -> None:
    layers = (
        LayerShape(kind="sliding_attention", weights=10.0, attention=2, recurrence=0, window=2),
        LayerShape(kind="linear_attention", weights=5.0, attention=0, recurrence=3, window=None),
    )
    shape = FamilyShape(layers=layers, beside=1, head=7, vision=NONE)
    step = family_flops(3, 2, 2, shape, SHARED_PREFIX)
    # three prompt tokens and two answers of two: 7 tokens of 16 weights and a state; windows of 2: 1 + 2 + 2, then 2 + 2 for each answer
    assert (step.update.linear, step.update.attention) == (3 * 7 * (2 * 16 + 3), 3 * 4 * 2 * (5 + 2 * 4))
    assert step.update.head == 3 * 2 * 7 * 4
    # the prompt once, then one decoding step of each of two answers
    assert (step.rollout.linear, step.rollout.attention) == (5 * (2 * 16 + 3), 4 * 2 * (5 + 2 * 2))
    tower = VisionShape(patch=2, blocks=3, attention=1, projector=5, classes=1)
    # 8 patches in 2 tiles with a class token each: 10 positions, 5 see each other
    assert vision_flops(tower, patches=8, tiles=2, tokens=4).vision == 2 * (8 * 2 + 10 * 3 + 4 * 5) + 4 * 10 * 5
    with pytest.raises(ValueError, match="at least 1"):
        family_flops(0, 1, 1, shape, REPEAT)


def test_experts_count_as_many_as_a_token_takes() -> None:
    config, _ = TINY["qwen3_vl_moe"]()
    before = family_shape(config)
    config.get_text_config().num_experts_per_tok = 4
    more = family_shape(config)
    # two of eight experts more in each of four layers: gate and up 2 x 48 x 64, down 48 x 64
    assert sum(x.weights for x in more.layers) - sum(x.weights for x in before.layers) == 4 * 2 * 3 * 48 * 64
