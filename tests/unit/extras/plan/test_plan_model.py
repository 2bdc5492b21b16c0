"""Shapes and parameter counts: equal to the real models', name by name, and to the published sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import saved_bytes
from vlmrl.config.schema import LoraSection
from vlmrl.errors import ConfigError
from vlmrl.extras.plan.model import FAMILIES, TARGETS, Lora, known_shapes, named_shape, parameters, shape_of, tensors
from vlmrl.families import registry
from vlmrl.families.qwen_vl import LANGUAGE_TARGETS
from vlmrl.policy import load
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec

WIDTHS: list[dict[str, Any]] = [{}, {"hidden": 96, "layers": 3, "heads": 6, "kv_heads": 6, "mlp": 160, "vision": {"depth": 4, "mlp": 256}}]


def test_families_and_targets_are_those_of_the_trainer() -> None:
    assert set(FAMILIES) == {family.name for family in registry.OWN}, "plan says by name that it does not know the sizes of others"
    assert TARGETS == LANGUAGE_TARGETS == LoraSection.model_fields["targets"].default


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("widths", WIDTHS, ids=["narrow", "wide"])
def test_every_tensor_of_the_real_model(family: str, tied: bool, widths: dict[str, Any]) -> None:
    model = saved_bytes.build(family, tied=tied, **widths)
    real = {name: tuple(p.shape) for name, p in model.named_parameters()}
    shape = shape_of(json.loads(model.config.to_json_string()))
    assert {t.name: t.size for t in tensors(shape)} == real
    assert shape.tied is tied


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("freeze", [(), ("vision",), ("projector",), ("vision", "projector"), ("language",), ("language", "vision")])
@pytest.mark.parametrize(
    "lora", [None, LoraSpec(rank=4, alpha=8.0), LoraSpec(rank=3, alpha=8.0, targets=("q_proj", "down_proj"), vision=True)]
)
def test_what_trains(family: str, freeze: tuple[str, ...], lora: LoraSpec | None) -> None:
    import torch

    if lora is not None and not lora.vision and "language" in freeze:
        pytest.skip("leaves nothing to train")
    policy = saved_bytes.policy_of(saved_bytes.build(family), compute=torch.float32)
    if lora is not None:
        add_adapters(policy, lora, seed_of=lambda _: 0, base="")
    trained = {name: tuple(p.shape) for name, p in load.freeze(policy, freeze)}
    total = sum(p.numel() for p in policy.model.parameters())
    own = None if lora is None else Lora(rank=lora.rank, targets=lora.targets, vision=lora.vision)
    found = parameters(shape_of(policy.model.config.to_dict()), freeze=freeze, lora=own)
    assert {t.name: t.size for t in found.trained} == trained
    assert found.n_trained + found.n_frozen == total


@pytest.mark.parametrize("name", list(known_shapes()))
def test_published_sizes(name: str) -> None:
    """The number that the files of the checkpoint hold."""
    assert sum(t.count for t in tensors(named_shape(name))) == known_shapes()[name]["parameters"]


def test_flat_and_nested_configs_are_read_alike() -> None:
    nested = dict(known_shapes()["qwen2.5-vl-7b"]["config"])
    vision = nested.pop("vision_config")
    again = {"model_type": "qwen2_5_vl", "text_config": nested, "vision_config": vision}
    assert shape_of(again) == named_shape("qwen2.5-vl-7b")


def test_what_is_not_a_shape() -> None:
    with pytest.raises(ConfigError, match="qwen2_5_vl"):
        shape_of({"model_type": "llama"})
    with pytest.raises(ConfigError, match="hidden_size"):
        shape_of({"model_type": "qwen2_5_vl", "num_attention_heads": 2})
    with pytest.raises(ConfigError, match=r"qwen2\.5-vl-7b"):
        named_shape("qwen")
