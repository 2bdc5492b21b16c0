"""torch's flash attention over packed rows, by kernels with the same contract on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import kernels as emulated
from vlmrl.errors import ConfigError
from vlmrl.policy import attention, kernels
from vlmrl.policy.attention import _BACKENDS, choose
from vlmrl.policy.pack import PrefixLayout, layout_of

GROUPS = st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=0, max_size=4)), min_size=1, max_size=4)
CUDA = torch.device("cuda")


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The kernels of the CPU in place of torch's; the arguments of every forward."""
    calls: list[dict[str, Any]] = []

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *more: Any, **named: Any) -> Any:
        calls.append({"query": query, "key": key, "value": value})
        return emulated.aten_forward(query, key, value, *more, **named)

    monkeypatch.setattr(kernels, "FLASH", kernels.Operations(forward, emulated.aten_backward))
    return calls


def run(backend: Any, layout: PrefixLayout, heads: tuple[int, int], seed: int = 0) -> list[torch.Tensor]:
    """Output and gradients."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(1, h, layout.tokens, 8, dtype=torch.float64, generator=g, requires_grad=True) for h in (heads[0], *heads[1:] * 2)
    )
    out = backend(q, k, v, layout, 0.3)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=g)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), (q, k, v))]


@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (4, 1)])
@settings(max_examples=40)
@given(groups=GROUPS, seed=st.integers(0, 3))
def test_segments_equal_the_dense_definition(heads: tuple[int, int], groups: list[tuple[int, list[int]]], seed: int) -> None:
    layout = layout_of(groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FLASH", emulated.ATEN)
        got = run(kernels.segments, layout, heads, seed)
    for one, other in zip(got, run(_BACKENDS["dense"], layout, heads, seed), strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_nothing_of_a_packed_row_is_copied(flash: list[dict[str, Any]]) -> None:
    layout = layout_of([(5, (3, 1, 4)), (3, (2,)), (4, ()), (6, (2, 0, 9))])
    # as a model gives them: [1, N, H, D] with two axes changed
    q, k, v = (torch.randn(1, layout.tokens, h, 8).transpose(1, 2) for h in (4, 2, 2))
    kernels.segments(q, k, v, layout, 0.3)
    assert len(flash) == 2, "two calls, however many groups and answers"
    for call in flash:
        assert [call[name].data_ptr() for name in ("query", "key", "value")] == [x.data_ptr() for x in (q, k, v)]


def test_one_call_where_no_group_has_two_answers(flash: list[dict[str, Any]]) -> None:
    layout = layout_of([(5, (3,)), (4, ()), (6, (0, 2, 0))])
    q, k, v = (torch.randn(1, h, layout.tokens, 8) for h in (4, 2, 2))
    kernels.segments(q, k, v, layout, 0.3)
    assert len(flash) == 1


def test_backward_keeps_its_order_in_deterministic_mode(flash: list[dict[str, Any]]) -> None:
    """The kernel of the CPU refuses a backward in which torch's would only warn (see `aten_backward`). Afterwards all is as before."""
    layout = layout_of([(5, (3, 1))])
    for deterministic, warn_only in ((True, True), (False, True), (False, False)):
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        run(kernels.segments, layout, (2, 1))
        assert torch.are_deterministic_algorithms_enabled() == deterministic
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only


def test_the_kernel_of_the_cpu_has_the_signature_of_torchs() -> None:
    for own, theirs in zip(emulated.ATEN, ("_flash_attention_forward", "_flash_attention_backward"), strict=True):
        schema = getattr(torch.ops.aten, theirs).default._schema
        names = [a.name for a in schema.arguments if not a.kwarg_only]
        code = own.__code__
        assert list(code.co_varnames[: code.co_argcount]) == names
        assert set(code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]) - {"sixteen"} <= {
            a.name for a in schema.arguments if a.kwarg_only
        }


@pytest.mark.parametrize("lack", [None, "this torch has no flash attention"])
@pytest.mark.parametrize("package", [True, False])
def test_choice_on_cuda(package: bool, lack: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash_package", lambda: package)
    monkeypatch.setattr(kernels, "lacks", lambda device: lack)
    name, why = choose("auto", CUDA, torch.bfloat16)
    assert name == ("flash" if package or lack is None else "flex")
    assert ("flash-attn, which is installed" if package else lack or "torch's own kernels") in why
    assert choose("auto", CUDA, torch.float32) == ("flex", "CUDA in 32 bits")
    with pytest.raises(ConfigError, match="bfloat16"):
        choose("flash", CUDA, torch.float32)
    if name == "flash":
        assert choose("flash", CUDA, torch.bfloat16)[0] == "flash"
    else:
        with pytest.raises(ConfigError, match="no flash attention"):
            choose("flash", CUDA, torch.bfloat16)
