"""Our M-RoPE positions (rule `max`) are those that vLLM samples with: its own functions, called on the same prompts."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from tests.support import tiny as tiny_module
from vlmrl.policy.load import load_policy
from vlmrl.policy.pack import prompt_positions
from vlmrl.types import Prompt

CLASSES = {
    "qwen2_vl": ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
}


def features(prompt: Prompt) -> list[Any]:
    """What vLLM's scheduler knows of a prompt's media."""
    owners = prompt.owners or tuple(range(len(prompt.media)))
    out: list[Any] = []
    for number, handle in enumerate(prompt.media):
        spans = [span for span, owner in zip(prompt.spans, owners, strict=True) if owner == number]
        # a video with a span per step begins, for vLLM, with the marker in front of its first step
        start, end = spans[0][0] - int(handle.step_times is not None), spans[-1][1]
        data = {f"{handle.kind}_grid_thw": SimpleNamespace(data=torch.tensor(handle.grid_thw))}
        if handle.kind == "video":
            data["second_per_grid_ts"] = SimpleNamespace(data=torch.tensor(handle.seconds_per_grid))
        position = SimpleNamespace(offset=start, length=end - start, is_embed=None)
        out.append(SimpleNamespace(modality=handle.kind, mm_position=position, data=data))
    return out


@pytest.mark.parametrize("family", sorted(CLASSES))
def test_positions_are_those_of_vllm(family: str, tmp_path: Any) -> None:
    import importlib

    model, data = tiny_module.make_files(tmp_path, sft=2, train=6, test=2, family=family)
    tiny = tiny_module.load(model, data)
    policy = load_policy(str(model), tiny.bundle, device="cpu", positions="max")
    module, name = CLASSES[family]
    theirs = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name)
    engine = theirs.__new__(theirs)
    torch.nn.Module.__init__(engine)
    engine.config = policy.model.config
    prompts = tiny.prompts(6)
    assert any(len(p.media) for p in prompts)
    two = dataclasses.replace(tiny.samples[0], media=(*tiny.samples[0].media, *tiny.samples[1].media))
    for prompt in [*prompts, tiny.encoder.encode(two, "answer_only")]:
        positions, delta = engine.get_mrope_input_positions(list(prompt.ids), features(prompt))
        ours = prompt_positions(prompt, policy.positions)
        assert torch.equal(torch.as_tensor(positions).long(), ours), prompt.sample.id
        assert int(ours[0, -1]) + 1 == len(prompt.ids) + delta, "an answer starts where vLLM starts it"
