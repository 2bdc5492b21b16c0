"""The predicted activations against saved-tensor hooks over the trainer's packed forward: three families, widths, types, recomputation."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch

from tests.support import saved_bytes
from vlmrl.extras.plan import activations as acts
from vlmrl.extras.plan.model import FAMILIES, Lora, named_shape, shape_of
from vlmrl.policy import attention, flash, kernels
from vlmrl.policy.model import LoraSpec

GROUPS: list[tuple[int, tuple[int, ...]]] = [(137, (41, 41, 30)), (75, (29,))]
"""Uneven answers, and a group with one."""
GRID = (1, 8, 14)
PATCHES = 112
WITHIN = 0.05
TYPES = {"float32": acts.FLOAT32, "autocast": acts.AUTOCAST, "bfloat16": acts.BFLOAT16}
WIDTHS: list[dict[str, Any]] = [
    {},
    {"layers": 7},
    {"mlp": 640},
    {"hidden": 256, "heads": 8, "kv_heads": 2},
    {"hidden": 192, "heads": 6, "kv_heads": 6, "mlp": 480, "layers": 3, "vision": {"hidden": 96, "depth": 4, "heads": 6, "mlp": 192}},
]


def both(family: str, kind: str, widths: dict[str, Any], *, media: bool, **how: Any) -> tuple[int, int]:
    """(measured, predicted) bytes."""
    model = saved_bytes.build(family, **widths)
    shape, row, numbers = shape_of(model.config.to_dict()), acts.PackedRow(tuple(GROUPS)), TYPES[kind]
    recompute, backend, lora = how.get("recompute", False), how.get("backend", "merge"), how.get("lora")
    frozen = how.pop("frozen", () if media else ("vision", "projector"))
    measured = saved_bytes.measure(
        model,
        GROUPS,
        compute=torch.float32 if kind == "float32" else torch.bfloat16,
        native=kind == "bfloat16",
        grid=GRID if media else None,
        frozen=frozen,
        **how,
    )
    adapters = None if lora is None else Lora(rank=lora.rank, targets=lora.targets)
    kept, _ = acts.decoder(shape, row, numbers, backend=backend, recompute=recompute, trained="language" not in frozen, lora=adapters)
    if not recompute:
        kept += acts.rotary(shape, row, numbers)
    visual = len(GROUPS) * PATCHES // 4 if media else 0
    kept += acts.ends(shape, row, numbers, trained=lora is None and "language" not in frozen, visual=visual) + acts.head(
        shape, row, numbers
    )
    if media and lora is None:
        blocks = "vision" not in frozen
        chunk = how.get("chunk")
        kept += acts.tower(shape, len(GROUPS) * PATCHES, numbers, recompute=recompute, blocks=blocks, chunk=chunk)[0]
        kept += 0 if recompute or not blocks or chunk else acts.tower_rotary(shape, len(GROUPS) * PATCHES)
    return measured.activations, kept


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize(
    "widths",
    [pytest.param(w, id="-".join(w) or "plain", marks=() if w in (WIDTHS[0], WIDTHS[-1]) else pytest.mark.slow) for w in WIDTHS],
)
def test_text(family: str, kind: str, widths: dict[str, Any]) -> None:
    """Layers, width of the MLP, hidden size and heads, one after the other."""
    measured, predicted = both(family, kind, widths, media=False)
    assert predicted == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize("widths", [pytest.param(WIDTHS[0], id="plain", marks=pytest.mark.slow), pytest.param(WIDTHS[4], id="wide")])
def test_text_recomputed(family: str, kind: str, widths: dict[str, Any]) -> None:
    measured, predicted = both(family, kind, widths, media=False, recompute=True)
    assert predicted == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("widths", [pytest.param(WIDTHS[0], id="plain", marks=pytest.mark.slow), pytest.param(WIDTHS[4], id="wide")])
def test_with_media(family: str, kind: str, recompute: bool, widths: dict[str, Any]) -> None:
    """A tower that trains, mergers and deep features included."""
    measured, predicted = both(family, kind, widths, media=True, recompute=recompute)
    assert predicted == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize("frozen", [(), ("vision",)], ids=["all", "mergers"])
def test_tower_by_chunks(family: str, kind: str, frozen: tuple[str, ...]) -> None:
    """Between forward and backward features alone are kept."""
    measured, predicted = both(family, kind, WIDTHS[4], media=True, frozen=frozen, chunk=PATCHES)
    whole, _ = both(family, kind, WIDTHS[4], media=True, frozen=frozen)
    assert predicted == pytest.approx(measured, rel=WITHIN)
    assert measured < whole


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["float32", "autocast"])
@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), acts.TARGETS], ids=["two", "all"])
def test_with_adapters(family: str, kind: str, targets: tuple[str, ...]) -> None:
    lora = LoraSpec(rank=8, alpha=16.0, targets=targets)
    measured, predicted = both(family, kind, WIDTHS[1], media=True, lora=lora)
    assert predicted == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize("backend", ["merge", "two_call", "dense"])
def test_backends(kind: str, backend: str) -> None:
    measured, predicted = both("qwen2_5_vl", kind, {}, media=False, backend=backend)
    assert predicted == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frozen", [("language",), ("vision",)])
def test_with_frozen_parts(family: str, frozen: tuple[str, ...]) -> None:
    """A decoder that only passes gradients on, or mergers that train alone."""
    measured, predicted = both(family, "float32", WIDTHS[1], media=True, frozen=frozen)
    assert predicted == pytest.approx(measured, rel=WITHIN)


class _Kernel(torch.autograd.Function):
    """What flash-attn keeps of a call: query, key, value, output and log-sum-exp. Its values are of no interest here."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = q.clone()
        ctx.save_for_backward(q, k, v, out, torch.zeros(q.shape[1], q.shape[0]))
        return out


@pytest.mark.parametrize("family", FAMILIES)
def test_flash_through_a_stand_in(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies around the kernel are the trainer's own."""

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **plan: Any) -> Any:
        return _Kernel.apply(q, k, v)

    monkeypatch.setitem(attention._BACKENDS, "flash", functools.partial(flash.varlen, kernel=kernel))
    measured, predicted = both(family, "autocast", WIDTHS[3], media=False, backend="flash")
    assert predicted == pytest.approx(measured, rel=WITHIN)


def test_sums_of_the_gradients_of_queries_by_hand() -> None:
    """One float32 [queries + 128 a sequence, heads, head size] for each share of the keys: 132 multiprocessors over 28 heads are 5."""
    shape = named_shape("qwen2.5-vl-7b")
    assert (shape.heads, shape.head_dim) == (28, 128)
    alone = acts.PackedRow(((35_000, (1_000,)),))
    assert acts.query_gradients(shape, alone, 132) == 5 * (36_000 + 128) * 28 * 128 * 4
    assert acts.query_gradients(shape, alone, 0) == (36_000 + 128) * 28 * 128 * 4
    shared = acts.PackedRow(((900, (500,) * 8),))  # prompts: one of 900, 5 shares; answers: eight, 132 over 8 * 28 is one share
    assert acts.query_gradients(shape, shared, 132) == max(5 * (900 + 128), 8 * (500 + 128)) * 28 * 128 * 4
    long = acts.PackedRow(((3_000, (500,) * 8),))  # its answers meet it in a call of their own, 5 shares of 4,000 queries
    assert acts.query_gradients(shape, long, 132) == 5 * (4_000 + 128) * 28 * 128 * 4
    assert acts.query_gradients(shape, long, 0) == 8 * (500 + 128) * 28 * 128 * 4
    assert acts.LONG == kernels.LONG
    small = dataclasses.replace(shape, head_dim=40)
    assert acts.query_gradients(small, alone, 0) == (36_000 + 128) * 28 * 64 * 4, "the head's size is rounded up to 32"
