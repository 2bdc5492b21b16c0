"""Tiny folders of every configuration: built, loaded again with the Auto classes, run on text, pictures and clips."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.families import tiny_folder
from vlmrl.extras.families import probe
from vlmrl.extras.families.conform import inputs
from vlmrl.extras.families.conform.subject import open_subject
from vlmrl.extras.families.tiny import TINY

QUICK = ("lfm2_vl", "mistral3", "qwen3_vl_moe")
KINDS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TINY]


def test_there_are_twenty() -> None:
    assert len(TINY) >= 20


@pytest.mark.parametrize("name", KINDS)
def test_a_tiny_model_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = open_subject(str(tiny_folder(name, tmp_path, monkeypatch)), ("text", "image", "video"))
    assert tried.failed == {}
    assert set(tried.prompts) == {"text", "image"} | ({"video"} if tried.facts.video else set())
    assert [c for c in (*inputs.ids(tried), *inputs.counts(tried), *inputs.handed_over(tried)) if not c.ok] == []
    assert tried.facts.model_type == name.removesuffix("_causal").removesuffix("_moe") or name.endswith("_moe")
    assert tried.facts.end_ids
    assert set(tried.facts.pads.values()) <= set(tried.facts.forbidden_ids) | {None}


def test_the_same_seed_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (tiny_folder("lfm2_vl", tmp_path / str(i), monkeypatch) for i in range(2))
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("model.visual.merger.mlp.0.weight", "projector"),
        ("model.vision_tower.encoder.layers.0.mlp.fc1.bias", "vision"),
        ("model.multi_modal_projector.linear_1.weight", "projector"),
        ("model.connector.modality_projection.proj.weight", "projector"),
        ("model.language_model.layers.3.self_attn.q_proj.weight", "language"),
        ("lm_head.weight", "language"),
    ],
)
def test_parts_by_the_names_of_modules(name: str, part: str) -> None:
    assert probe.part_of(name) == part
