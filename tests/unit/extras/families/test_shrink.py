"""Configs of full size made small by rule: the model is built, and keeps what the kit asks of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from vlmrl.extras.families.conform.run import conform
from vlmrl.extras.families.conform.subject import try_out
from vlmrl.extras.families.shrink import shrunk
from vlmrl.extras.families.tiny import TINY, randomise

GEOMETRY = ("patch_size", "image_size", "spatial_merge_size", "temporal_patch_size", "window_size")
TEXT_IDS = ("vocab_size", "pad_token_id", "eos_token_id", "bos_token_id")


def full_size(name: str) -> tuple[Any, Any]:
    """transformers' default config of a model type, with the ids and the geometry that a tiny processor has; that processor."""
    tiny, processor = TINY[name]()
    config = AutoConfig.for_model(name)
    for key in TEXT_IDS:
        setattr(config.get_text_config(), key, getattr(tiny.get_text_config(), key, None))
    for key in GEOMETRY:
        if hasattr(tiny.vision_config, key):
            setattr(config.vision_config, key, getattr(tiny.vision_config, key))
    for key, value in vars(tiny).items():
        if key.endswith(("_token_id", "_token_index", "image_seq_length", "mm_tokens_per_image")):
            setattr(config, key, value)
    return config, processor


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_5", "gemma3"])
def test_a_config_of_full_size_becomes_a_model_that_runs(name: str) -> None:
    config, processor = full_size(name)
    before = config.get_text_config().to_dict()
    small = shrunk(config)
    text = small.get_text_config()
    assert config.get_text_config().to_dict() == before, "the config that was given stays"
    assert set(text.layer_types) == set(before["layer_types"]), "kinds of layers stay"
    assert len(text.layer_types) == text.num_hidden_layers <= 8
    model = AutoModelForImageTextToText.from_config(small, dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) < 3_000_000
    randomise(model, 0)
    report = conform(try_out(model, processor, ("image",)), name, ("P2", "P6", "P8"))
    assert report.failed() == []
    assert any(c.control for c in report.checks)
