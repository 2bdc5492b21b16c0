"""torch's flash attention over packed rows and over the windows of the vision tower, by kernels with the same contract on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import kernels as emulated
from tests.support import tiny as tiny_module
from vlmrl.errors import ConfigError
from vlmrl.policy import attention, kernels, windows
from vlmrl.policy.attention import _BACKENDS, choose, tower_kernel
from vlmrl.policy.load import freeze
from vlmrl.policy.pack import PrefixLayout, layout_of
from vlmrl.policy.vision import VisionCache

GROUPS = st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=0, max_size=4)), min_size=1, max_size=4)
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


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


@settings(max_examples=60)
@given(groups=GROUPS, seed=st.integers(0, 3), uneven=st.sampled_from([0.0, 2.0, 20.0]))
def test_an_ordered_backward_gives_long_sequences_calls_of_their_own(groups: list[tuple[int, list[int]]], seed: int, uneven: float) -> None:
    """And the gradients are those of one call."""
    layout = layout_of(groups)
    calls: list[int] = []

    def backward(*given: Any, **named: Any) -> Any:
        calls.append(len(given[6]) - 1)
        return emulated.aten_backward(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "FLASH", kernels.Operations(emulated.aten_forward, backward))
        patch.setattr(kernels, "LONG", 3)
        patch.setattr(kernels, "UNEVEN", uneven)
        kernels._alone.cache_clear()
        got = run(kernels.segments, layout, (4, 2), seed)
        kernels._alone.cache_clear()
    for one, other in zip(got, run(_BACKENDS["dense"], layout, (4, 2), seed), strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    if uneven == 0.0:
        long = sum(run.stop - run.start >= 3 for run in layout.runs)
        assert sum(n == 1 for n in calls) >= (long if len(layout.runs) > 1 else 0)


def test_which_sequences_get_a_call_of_their_own() -> None:
    answers = [(256, 256)] * 8
    spans, rest = kernels._alone(((8192, 8192), *answers), 16, True, CPU)
    assert [(span.q, span.k, span.at.pairs) for span in spans] == [((0, 8192), (0, 8192), ((8192, 8192),))]
    assert rest is not None
    assert rest.pairs == ((8192, 0), (0, 8192), *answers)
    assert kernels._alone(tuple(answers), 16, True, CPU) == ((), None), "even ones share a call"
    assert kernels._alone(((900, 900), *answers), 16, True, CPU) == ((), None), "and short ones"
    assert kernels._alone(((8192, 8192),), 16, True, CPU) == ((), None), "one alone has all there is"
    assert kernels._alone(((8192, 8192),) * 12, 16, True, CPU) == ((), None), "many long ones keep all busy"
    spans, _ = kernels._alone(((4096, 0), (100, 4096), (0, 100)), 16, False, CPU)
    assert [(span.q, span.k) for span in spans] == [((4096, 4196), (0, 4096))]
    assert kernels._alone((), 16, False, CPU) == ((), None), "windows of a tower, which the host has not counted"


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


@pytest.mark.parametrize("lack", [None, "this torch has no flash attention of CUDA"])
@pytest.mark.parametrize("package", [True, False])
def test_choice_on_cuda(package: bool, lack: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "has_flash_package", lambda: package)
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
        with pytest.raises(ConfigError, match="no flash attention of CUDA"):
            choose("flash", CUDA, torch.bfloat16)


def test_choice_of_the_towers_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "lacks", lambda device: None)
    assert tower_kernel("sdpa", CUDA, torch.bfloat16) == windows.TOWER
    assert tower_kernel("sdpa", CUDA, torch.float32) == windows.WINDOWS
    assert tower_kernel("sdpa", CPU, torch.bfloat16) == windows.WINDOWS
    assert tower_kernel("eager", CPU, torch.float32) == "eager"
    assert tower_kernel("flash_attention_2", CUDA, torch.bfloat16) == "flash_attention_2"
    monkeypatch.setattr(kernels, "lacks", lambda device: "an old GPU")
    assert tower_kernel("sdpa", CUDA, torch.bfloat16) == windows.WINDOWS


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def towered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tiny_module.Tiny:
    files = tiny_module.make_files(tmp_path_factory.mktemp(request.param), sft=1, train=3, test=1, family=request.param)
    loaded = tiny_module.load(*files)
    freeze(loaded.policy, ("language",))
    return loaded


def encoded(tiny: tiny_module.Tiny, name: str) -> list[torch.Tensor]:
    """Features of three videos and the gradients of the tower, with an attention function of that name."""
    policy = tiny.policy
    policy.model.set_attn_implementation({"text_config": "vlmrl_sdpa", "vision_config": name})
    handles = [handle for prompt in tiny.prompts(3) for handle in prompt.media]
    features = VisionCache(tiny.store, budget_bytes=2**26).features(policy, handles, train=True)
    parts = [part for feature in features.values() for part in (feature.merged, *feature.deepstack)]
    weights = [torch.randn(part.shape, generator=torch.Generator().manual_seed(n)) for n, part in enumerate(parts)]
    policy.model.zero_grad(set_to_none=True)
    torch.stack([(part * weight).sum() for part, weight in zip(parts, weights, strict=True)]).sum().backward()
    gradients = [p.grad for p in policy.core.visual.parameters() if p.grad is not None]
    policy.model.set_attn_implementation({"text_config": "vlmrl_sdpa", "vision_config": "sdpa"})
    return [part.detach() for part in parts] + gradients


def test_the_tower_in_one_call_equals_one_call_for_each_window(towered: tiny_module.Tiny, flash: list[dict[str, Any]]) -> None:
    expected = encoded(towered, "sdpa")
    assert flash == []
    got = encoded(towered, windows.TOWER)
    assert len(flash) == len(towered.policy.core.visual.blocks), "one call for each block of the tower"
    assert len(got) == len(expected) > 10
    for one, other in zip(got, expected, strict=True):
        # of sums of terms as large as the largest: how they are rounded is the machine's
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.abs().max())))


def test_windows_of_a_length_in_one_call_equal_one_call_for_each_window(towered: tiny_module.Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, gradients too."""
    expected = encoded(towered, "sdpa")
    calls: list[tuple[int, ...]] = []
    whole = torch.nn.functional.scaled_dot_product_attention

    def counted(q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(tuple(q.shape))
        return whole(q, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    got = encoded(towered, windows.WINDOWS)
    assert len({shape[0] for shape in calls}) > 0
    assert all(shape[0] > 1 for shape in calls), "several windows a call"
    assert len(got) == len(expected) > 10
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("lengths", [(4, 4, 4), (64, 32, 64, 32, 16, 8), (0, 3, 5, 3, 0), (7,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_windows_of_any_lengths(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    """Against a loop over the windows: columns stay where they are, and every bit of output and gradients is the same."""
    draw = torch.Generator().manual_seed(3)
    qkv = torch.randn(3, sum(lengths), 2, 24, generator=draw).to(dtype).requires_grad_()
    weight = torch.randn(sum(lengths), 2, 24, generator=draw).to(dtype)

    def run(one_call: bool) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (x.transpose(0, 1)[None] for x in qkv.unbind(0))
        if one_call:
            ends = torch.tensor([0, *lengths]).cumsum(0)
            out = windows.window_attention(None, q, k, v, None, cu_seq_lens_q=ends, scaling=0.3)[0][0]
        else:
            pieces = (torch.split(x, list(lengths), dim=2) for x in (q, k, v))
            attend = torch.nn.functional.scaled_dot_product_attention
            out = torch.cat([attend(*part, scale=0.3) for part in zip(*pieces, strict=True)], dim=2)[0].transpose(0, 1)
        (gradient,) = torch.autograd.grad((out * weight).sum(), qkv)
        return out.detach(), gradient

    (out, gradient), (expected, of_expected) = run(True), run(False)
    assert out.shape == expected.shape
    assert torch.equal(out, expected)
    assert torch.equal(gradient, of_expected)


def test_windows_that_were_read_without_gradients_are_trained_later() -> None:
    """Columns are kept from call to call: a rollout in inference mode may have been the first to ask for them."""
    windows.columns_by_length.cache_clear()
    x = torch.randn(1, 2, 7, 4)
    ends = torch.tensor([0, 3, 5, 7])
    with torch.inference_mode():
        expected = windows.window_attention(None, x, x, x, None, cu_seq_lens_q=ends)[0]
    leaf = x.clone().requires_grad_()
    out = windows.window_attention(None, leaf, leaf, leaf, None, cu_seq_lens_q=ends)[0]
    out.sum().backward()
    assert torch.equal(out.detach(), expected)
    assert leaf.grad is not None


def test_windows_take_no_mask_and_no_dropout() -> None:
    x = torch.zeros(1, 1, 2, 4)
    ends = torch.tensor([0, 2])
    for mask, dropout in ((torch.ones(2, 2), 0.0), (None, 0.1)):
        with pytest.raises(RuntimeError, match="no mask and no dropout"):
            windows.window_attention(None, x, x, x, mask, cu_seq_lens_q=ends, dropout=dropout)


def test_a_model_on_cuda_in_16_bits_takes_it(
    tiny_files: tuple[Path, Path], tiny: tiny_module.Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`attach` names it for the tower only; here by a device that says it is CUDA's."""
    monkeypatch.setattr(kernels, "lacks", lambda device: None)
    model = tiny.policy.model
    try:
        attention.attach(model, "sdpa", device=CUDA, compute=torch.bfloat16)
        assert model.config.vision_config._attn_implementation == windows.TOWER
        assert model.config.text_config._attn_implementation == "vlmrl_sdpa"
    finally:
        attention.attach(model, "sdpa", device=CPU, compute=torch.float32)
    assert model.config.vision_config._attn_implementation == windows.WINDOWS
