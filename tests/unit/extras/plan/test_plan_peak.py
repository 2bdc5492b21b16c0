"""The predicted peak of forward and backward against all that is alive on the CPU: state, kept tensors, and what comes and goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support import cases, saved_bytes
from vlmrl.extras.plan.gpus import gpu_of
from vlmrl.extras.plan.memory import memory
from vlmrl.extras.plan.model import FAMILIES, Lora, shape_of
from vlmrl.extras.plan.settings import SLACK, Settings
from vlmrl.policy.model import LoraSpec

PROMPT, ANSWERS, ANSWER = 400, 4, 60
GRID, FRAMES = (1, 24, 40), (8, 10, 12)
"""As many patches in one frame and in eight."""
WIDTHS: dict[str, Any] = {"hidden": 192, "layers": 5, "heads": 6, "kv_heads": 2, "mlp": 512}
WITHIN = 0.05


def both(
    family: str, kind: str, *, recompute: bool, vocab: int, media: bool = False, rank: int | None = None, chunk: int | None = None
) -> tuple[int, int]:
    """(alive at most, predicted) bytes."""
    grid = GRID if chunk is None else FRAMES
    model = saved_bytes.build(family, vocab=vocab, vision={"hidden": 96, "mlp": 192}, **WIDTHS)
    shape, frozen = shape_of(model.config.to_dict()), () if media else ("vision", "projector")
    settings = Settings(
        shape=shape,
        gpu=gpu_of("h100"),
        gpus=1,
        dtype="float32" if kind == "float32" else "bfloat16",
        backend="merge",
        recompute=recompute,
        freeze=frozen,
        lora=None if rank is None else Lora(rank=rank),
        groups=1,
        answers=ANSWERS,
        prompt=PROMPT,
        answer=ANSWER,
        visual=GRID[1] * GRID[2] // 4 if media else 0,
        vision_chunk=chunk,
        engine="none",
    )
    most = saved_bytes.peak(
        model,
        [(PROMPT, (ANSWER,) * ANSWERS)],
        compute=torch.float32 if kind == "float32" else torch.bfloat16,
        recompute=recompute,
        grid=grid if media else None,
        chunk=chunk,
        frozen=frozen,
        lora=None if rank is None else LoraSpec(rank=rank, alpha=16.0),
    )
    found = memory(settings)
    return most, found.phases["forward/backward"] - found.state.moments - found.features - SLACK


BY_CHUNKS = [(family, recompute) for family in FAMILIES for recompute in (False, True)]


@pytest.mark.parametrize(("family", "recompute"), cases.some(BY_CHUNKS, {("qwen2_5_vl", False), ("qwen3_vl", True)}))
def test_peak_of_a_tower_by_chunks(family: str, recompute: bool) -> None:
    """Two frames at a time."""
    most, predicted = both(family, "float32", recompute=recompute, vocab=512, media=True, chunk=240)
    assert predicted == pytest.approx(most, rel=WITHIN)
    whole, _ = both(family, "float32", recompute=recompute, vocab=512, media=True)
    assert most < whole


@pytest.mark.parametrize("family", cases.some(FAMILIES, {"qwen2_5_vl", "qwen3_vl"}))
@pytest.mark.parametrize("kind", ["float32", "autocast"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("media", [pytest.param(False, id="text", marks=pytest.mark.slow), pytest.param(True, id="media")])
def test_peak(family: str, kind: str, recompute: bool, media: bool) -> None:
    most, predicted = both(family, kind, recompute=recompute, media=media, vocab=6000)
    assert predicted == pytest.approx(most, rel=WITHIN)


@pytest.mark.parametrize("kind", ["float32", "autocast"])
@pytest.mark.parametrize("family", cases.some(FAMILIES, {"qwen2_5_vl", "qwen3_vl"}))
def test_peak_in_a_layer(family: str, kind: str) -> None:
    """With a small vocabulary the layer that is recomputed is the worst moment."""
    most, predicted = both(family, kind, recompute=True, vocab=300)
    assert predicted == pytest.approx(most, rel=WITHIN)


@pytest.mark.parametrize("kind", ["float32", "autocast"])
def test_peak_with_adapters(kind: str) -> None:
    most, predicted = both("qwen2_5_vl", kind, recompute=True, vocab=6000, rank=8)
    assert predicted == pytest.approx(most, rel=WITHIN)
