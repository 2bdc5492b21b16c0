"""What to change: each number is that of a plan with the change, and what is taken together fits and is needed."""

from __future__ import annotations

from typing import Any

import pytest

from vlmrl.extras.plan.advice import candidates, changes, enough_gpus, remedy, whole_group
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.model import Lora, named_shape
from vlmrl.extras.plan.result import Plan, plan
from vlmrl.extras.plan.settings import Settings


def planned(**changed: Any) -> Plan:
    values: dict[str, Any] = {"shape": named_shape("qwen2.5-vl-3b"), "gpu": gpu_of("h100"), "gpus": 1, "dtype": "bfloat16"}
    return plan(Settings(**values | changed))


def test_every_change_says_what_it_gives() -> None:
    before = planned(shape=named_shape("qwen2.5-vl-7b"))
    found = changes(before, "rl")
    known = dict(candidates(before.settings, "rl"))
    assert found
    for change in found:
        assert change.peak == plan(known[change.what]).memory.peak < before.memory.peak
    assert [change.peak for change in found] == sorted(change.peak for change in found)
    named = " ".join(change.what for change in found)
    for part in ("gradient_checkpointing", "max_tokens_per_microbatch", "freeze", "model.lora"):
        assert part in named


def test_adapters_make_a_model_fit_that_did_not() -> None:
    before = planned(shape=named_shape("qwen2.5-vl-7b"), recompute=True)
    assert before.fits == "no"
    steps = remedy(before, "rl")
    assert steps is not None
    assert steps[-1].fits == "yes"
    assert any(step.what.startswith("model.lora") for step in steps)


def test_nothing_is_taken_that_is_not_needed() -> None:
    """Leaving out any one of the changes but the last, it does not fit."""
    work = {"prompt": 32768, "answer": 512, "budget": 36864, "recompute": True, "engine": "vllm", "groups": 4}
    before = planned(shape=named_shape("qwen2.5-vl-72b"), gpus=8, sharding="fsdp", **work)
    steps = remedy(before, "rl")
    assert steps is not None
    assert len(steps) > 1
    for left_out in steps[:-1]:
        now: Settings | None = before.settings
        for step in steps:
            if step is not left_out and now is not None:
                now = dict(candidates(now, "rl")).get(step.what)
        assert now is None or plan(now).fits != "yes"


def test_a_group_that_is_cut_has_its_prompt_computed_once_again() -> None:
    """2,048 + 4 x 512 tokens: in micro-batches of 2,560 each answer brings its prompt along."""
    work: dict[str, Any] = {"lora": Lora(rank=8), "recompute": True, "prompt": 2048, "answer": 512, "answers": 4, "groups": 8}
    cut = planned(budget=2560, **work)
    found = whole_group(cut, "rl")
    assert found is not None
    assert found.what == "stages.rl.max_tokens_per_microbatch=4096"
    assert found.after.time.step < cut.time.step
    assert len(found.after.settings.rows) == 8 < len(cut.settings.rows) == 32
    assert whole_group(found.after, "rl") is None, "nothing is cut any more"
    assert whole_group(planned(gpu=gpu_of("rtx4090"), budget=2560, **work | {"answer": 8192}), "rl") is None, "it would not fit"


def test_a_smaller_cache_of_features_is_a_change() -> None:
    before = planned(lora=Lora(rank=8))
    assert "media.cache_bytes=268435456" in [change.what for change in changes(before, "rl")]


def test_what_fits_needs_no_change() -> None:
    assert remedy(planned(gpus=8, sharding="fsdp", recompute=True), "rl") == []


def test_what_nothing_helps() -> None:
    assert remedy(planned(shape=named_shape("qwen2.5-vl-72b"), gpu=gpu_of("rtx4090"), recompute=True), "rl") is None


def test_enough_gpus() -> None:
    before = planned(shape=named_shape("qwen2.5-vl-32b"), recompute=True, engine="vllm", groups=64)
    count = enough_gpus(before)
    assert count is not None
    assert plan(before.settings.changed(gpus=count, sharding="fsdp", groups=max(1, 64 // count))).fits == "yes"
    assert plan(before.settings.changed(gpus=count // 2, sharding="fsdp", groups=max(1, 128 // count))).fits != "yes"


@pytest.mark.parametrize(("share", "word"), [(0.5, "yes"), (0.95, "tight"), (1.2, "no")])
def test_words(share: float, word: str) -> None:
    before = planned(lora=Lora(rank=8))
    import dataclasses

    gpu = dataclasses.replace(before.settings.gpu, memory=int(before.memory.peak / share))
    assert plan(before.settings.changed(gpu=gpu, engine="hf")).fits == word
