"""Counted operations: against sums done by hand, and against torch's own counter on a real model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.step.flops import (
    EVERYTHING_REPEATED,
    REPEAT,
    SHARED_PREFIX,
    ModelShape,
    TowerShape,
    decoder_flops,
    flops,
    model_shape,
    tower_flops,
)

SHAPE = ModelShape(layers=2, hidden=4, query=4, key=2, mlp=8, vocabulary=10, tower=None)
TOWER = TowerShape(depth=3, hidden=4, mlp=6, mlp_matrices=3, patch_values=5, merge=2, out=7, window=4, full_blocks=(1,))
sizes = st.integers(1, 40)


def by_kind(x):
    return x.linear, x.attention, x.head, x.vision


def test_decoder_by_hand():
    # per layer and token: q 4x4, k and v 4x2 each, o 4x4, three of 4x8 = 144 weights; two operations each, two layers
    # per layer and pair: 4 products for the score and 4 for the value
    # per scored token: 4 x 10 weights
    assert by_kind(decoder_flops(SHAPE, tokens=3, pairs=6, scored=2)) == (2 * 2 * 144 * 3, 2 * 2 * 8 * 6, 2 * 40 * 2, 0)


def test_tower_by_hand():
    # 2 frames of 6 x 4 patches: 48 patches; windows of 4 x 4 cut a frame into 4 x 4 and 2 x 4
    patches = 48
    full, windowed = 2 * 24**2, 2 * (16**2 + 8**2)
    block = 4 * 16 + 3 * 4 * 6
    linear = patches * (5 * 4 + 3 * block) + 12 * (16 * 16 + 16 * 7)
    assert tower_flops(TOWER, (2, 6, 4)).total == 2 * linear + 2 * 2 * 4 * (full + 2 * windowed)


def test_step_by_hand():
    step = flops(5, 3, 2, SHAPE, REPEAT)
    weights = 2 * 2 * 144
    pair = 2 * 2 * 8
    # rollout: one prefill of 5, then one decoding step of each of three answers that sees 6 tokens; 3 x 2 tokens are drawn
    assert by_kind(step.rollout) == (weights * (5 + 3), pair * (15 + 3 * 6), 2 * 40 * 6, 0)
    # update: three rows of 7 tokens
    assert by_kind(step.update) == (3 * weights * 21, 3 * pair * 3 * 28, 3 * 2 * 40 * 6, 0)
    shared = flops(5, 3, 2, SHAPE, SHARED_PREFIX)
    # 5 + 3 x 2 tokens; pairs of the prompt 15, of an answer token the prompt's 5 and 1 or 2 of its own
    assert by_kind(shared.update) == (3 * weights * 11, 3 * pair * (15 + 3 * (6 + 7)), 3 * 2 * 40 * 6, 0)
    assert shared.rollout == step.rollout


def test_a_trainer_without_groups_pays_prompt_and_tower_per_answer():
    shape = ModelShape(layers=2, hidden=4, query=4, key=2, mlp=8, vocabulary=10, tower=TOWER)
    grid = (1, 4, 4)
    once, each = flops(9, 4, 3, shape, REPEAT, media=[grid]), flops(9, 4, 3, shape, EVERYTHING_REPEATED, media=[grid])
    tower, prompt = tower_flops(TOWER, grid).total, decoder_flops(shape, tokens=9, pairs=45, scored=0).total
    assert each.rollout.total - once.rollout.total == pytest.approx(3 * (tower + prompt))
    assert each.update.total - once.update.total == pytest.approx(3 * 3 * tower)
    assert each.update.linear == once.update.linear


@given(prompt=sizes, group=sizes, completion=sizes)
def test_sharing_the_prompt(prompt, group, completion):
    """Linear layers are cheaper by exactly G (P + C) / (P + G C); one answer is an ordinary row."""
    repeat, shared = flops(prompt, group, completion, SHAPE, REPEAT).update, flops(prompt, group, completion, SHAPE, SHARED_PREFIX).update
    assert repeat.linear * (prompt + group * completion) == pytest.approx(shared.linear * group * (prompt + completion))
    assert repeat.head == shared.head
    saved = (group - 1) * prompt * (prompt + 1) // 2
    assert repeat.attention - shared.attention == pytest.approx(3 * 2 * 2 * 8 * saved)
    if group == 1:
        assert by_kind(repeat) == pytest.approx(by_kind(shared))


@given(prompt=sizes, group=sizes, completion=sizes)
@settings(max_examples=25)
def test_two_groups_of_one_answer_cost_twice_one(prompt, group, completion):
    one, many = flops(prompt, 1, completion, SHAPE, REPEAT), flops(prompt, group, completion, SHAPE, EVERYTHING_REPEATED)
    assert many.total == pytest.approx(group * one.total)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_counts_start_at_one(numbers):
    with pytest.raises(ValueError, match="at least 1"):
        flops(*numbers, SHAPE)


def test_media_need_a_tower():
    with pytest.raises(ValueError, match="no vision tower"):
        flops(1, 1, 1, SHAPE, media=[(1, 2, 2)])


def test_head_dimension_may_differ_from_hidden_over_heads():
    text = SimpleNamespace(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=4, vocab_size=9
    )
    shape = model_shape(SimpleNamespace(get_text_config=lambda: text))
    assert (shape.query, shape.key, shape.tower) == (32, 16, None)


@pytest.fixture(scope="module")
def model():
    """A Qwen2.5-VL with eager attention, whose products torch's counter sees."""
    from vlmrl.compat import ensure_torchvision

    ensure_torchvision()
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 40,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0]},
        },
        vision_config={
            "depth": 3,
            "hidden_size": 16,
            "intermediate_size": 20,
            "num_heads": 2,
            "out_hidden_size": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [2],
        },
        image_token_id=1,
        video_token_id=2,
        vision_start_token_id=3,
        vision_end_token_id=4,
    )
    built = Qwen2_5_VLForConditionalGeneration(config)
    built.set_attn_implementation("eager")
    return built.eval()


def counted(function):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function()
    return counter.get_total_flops()


def test_decoder_against_torch(model):
    tokens, rows = 7, 2
    inputs = torch.randn(rows, tokens, 16)
    positions = torch.arange(tokens).expand(3, rows, -1)
    shape = model_shape(model.config)

    def forward():
        hidden = model.model.language_model(inputs_embeds=inputs, position_ids=positions, use_cache=False).last_hidden_state
        model.lm_head(hidden[:, -3:])

    # eager attention computes masked pairs too; the rotary embedding is a product of [8, 1] and [1, S] per row
    expected = decoder_flops(shape, tokens=rows * tokens, pairs=rows * tokens**2, scored=rows * 3)
    rotary = counted(lambda: model.model.language_model.rotary_emb(inputs, positions))
    assert counted(forward) - rotary == expected.total


@pytest.mark.parametrize("grid", [(1, 8, 8), (1, 12, 20), (3, 8, 4)])
def test_tower_against_torch(model, grid):
    t, h, w = grid
    shape = model_shape(model.config)
    pixels, sizes_ = torch.randn(t * h * w, 3 * 2 * 14 * 14), torch.tensor([grid])
    assert shape.tower is not None
    measured = counted(lambda: model.model.visual(pixels, grid_thw=sizes_))
    assert measured == pytest.approx(tower_flops(shape.tower, grid).total, rel=1e-3)


def test_backward_is_twice_forward(model):
    inputs = torch.randn(1, 5, 16, requires_grad=True)
    positions = torch.arange(5).expand(3, 1, -1)
    with FlopCounterMode(display=False) as counter:
        hidden = model.model.language_model(inputs_embeds=inputs, position_ids=positions, use_cache=False).last_hidden_state
        model.lm_head(hidden).sum().backward()
    expected = decoder_flops(model_shape(model.config), tokens=5, pairs=25, scored=5).times(3).total
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-2)
