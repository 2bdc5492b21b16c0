"""The predicted peak of a rollout against all that is alive on the CPU: weights, caches, and what comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import saved_bytes
from vlmrl.extras.plan import generation
from vlmrl.extras.plan import memory as mem
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.model import FAMILIES, Lora, shape_of
from vlmrl.extras.plan.settings import SLACK, Settings
from vlmrl.policy import nf4
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec, Policy

WIDTHS: dict[str, Any] = {"hidden": 128, "layers": 3, "heads": 4, "kv_heads": 2, "mlp": 384}
WITHIN = 0.05
SHORT, GROWN = 24, 150
"""Tokens of an answer: one room, and rooms that are doubled twice."""


def policy_of(kind: str, folder: Path, *, family: str = "qwen2_5_vl", vocab: int = 400) -> Policy:
    model = saved_bytes.build(family, vocab=vocab, vision={"hidden": 32, "mlp": 64, "heads": 2}, **WIDTHS)
    if kind == "nf4":
        pytest.importorskip("bitsandbytes")
        model.save_pretrained(folder)
        options = nf4.options(model, torch.float32)
        model = type(model).from_pretrained(folder, quantization_config=options, device_map={"": "cpu"}, dtype=torch.float32)
        nf4.settle(model)
    policy = saved_bytes.policy_of(model, compute=torch.float32)
    if kind != "full":
        add_adapters(policy, LoraSpec(rank=4, alpha=8.0), seed_of=lambda _: 0, base="")
    return policy


def both(
    policy: Policy, kind: str, *, prompts: int = 2, prompt: int, answers: int, answer: int, together: int = 256
) -> tuple[int, int, Settings]:
    """(alive at most, predicted) bytes, and what it was predicted from."""
    s = Settings(
        shape=shape_of(policy.model.config.to_dict()),
        gpu=gpu_of("h100"),
        gpus=1,
        lora=None if kind == "full" else Lora(rank=4),
        quantize="nf4" if kind == "nf4" else "none",
        groups=prompts,
        answers=answers,
        prompt=prompt,
        answer=answer,
        visual=0,
        running=together,
    )
    most = saved_bytes.rollout_peak(policy, prompts=prompts, prompt=prompt, answers=answers, answer=answer, together=together)
    found = mem.memory(s)
    return most, found.phases["rollout"] - found.state.moments - found.features - SLACK, s


@pytest.mark.parametrize("kind", ["full", "lora", "nf4"])
def test_peak_of_short_answers_is_that_of_reading(kind: str, tmp_path: Path) -> None:
    most, predicted, s = both(policy_of(kind, tmp_path), kind, prompt=600, answers=3, answer=SHORT)
    assert generation.reading(s) > generation.decoding(s)
    assert predicted == pytest.approx(most, rel=WITHIN)


@pytest.mark.parametrize("kind", ["full", "lora", "nf4"])
def test_peak_of_grown_answers_is_that_of_decoding(kind: str, tmp_path: Path) -> None:
    """Their caches are more than half of it: held twice, as they would be if all layers grew at once, the plan would be far off."""
    most, predicted, s = both(policy_of(kind, tmp_path), kind, prompt=40, answers=16, answer=GROWN)
    cache = 2 * 16 * GROWN * generation.kv_token(s)
    assert cache > generation.reading(s)
    assert cache > 0.3 * most
    assert predicted == pytest.approx(most, rel=WITHIN)


@pytest.mark.parametrize("family", FAMILIES)
def test_peak_of_drawing(family: str, tmp_path: Path) -> None:
    """A large vocabulary: one token of all answers is the worst moment."""
    most, predicted, s = both(policy_of("full", tmp_path, family=family, vocab=6000), "full", prompt=40, answers=16, answer=8)
    assert generation.decoding(s) > generation.reading(s)
    assert predicted == pytest.approx(most, rel=WITHIN)


@pytest.mark.parametrize("answer", [SHORT, 100])
def test_peak_where_prompts_come_in_for_others(answer: int, tmp_path: Path) -> None:
    """Two prompts at a time of four."""
    most, predicted, s = both(policy_of("full", tmp_path), "full", prompts=4, prompt=200, answers=6, answer=answer, together=12)
    assert (generation.running(s), generation.together(s)) == (2, 4)
    assert predicted == pytest.approx(most, rel=WITHIN)


def test_the_last_room() -> None:
    assert [generation.last_room(n) for n in (1, 64, 65, 128, 129, 150, 1024)] == [0, 0, 64, 64, 128, 128, 512]
