"""In bfloat16 every backend and layout and the rollout engine give the same log-probs and gradients, up to the rounding of 8 bits."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support import kernels
from tests.support import tiny as tiny_module
from vlmrl.errors import ConfigError
from vlmrl.policy.attention import _BACKENDS, prefix_attention
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.load import freeze, load_policy
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import Row, layout_of
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.rollout.grid import DecodeGrid
from vlmrl.types import PARTS, GenerationSettings, Part, Request

pytestmark = pytest.mark.not_fast  # builds models

SHARP = 3.0
"""Factor on the weights of query and key: with those that a fresh model has, attention is even and hides what is rounded in it."""


@dataclass
class Half:
    """A tiny model in bfloat16 and in float32, with sampled answers and what the sampler said of them."""

    policy: Policy
    exact: Policy
    rows: list[Row]
    sampled: list[torch.Tensor]
    vision: VisionCache
    forbidden: tuple[int, ...]
    folder: str

    def scores(self, backend: str | None, *, exact: bool = False, train: bool = False) -> torch.Tensor:
        """Log-probs [N, T] through a backend, or with None in the layout `repeat`."""
        policy = copy.copy(self.exact if exact else self.policy)
        policy.prefix_backend = backend or "dense"  # pyright: ignore[reportAttributeAccessIssue]
        layout = LAYOUTS["repeat" if backend is None else "shared_prefix"]
        batch = layout.pack(self.rows, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
        # not the shared cache for the exact one: it holds features in 16 bits
        vision = VisionCache(self.vision.pixels, budget_bytes=2**26) if exact else self.vision
        return layout.forward(policy, batch, vision, temperature=1.0, forbidden=self.forbidden, train=train).logp_BT

    def gap(self, a: torch.Tensor, b: torch.Tensor) -> float:
        """Mean |a - b| over the answers' tokens."""
        parts = [(a[n] - b[n])[: len(row.response)].abs() for n, row in enumerate(self.rows)]
        return float(torch.cat(parts).mean())

    def gradient(self, backend: str | None) -> torch.Tensor:
        """Of a policy-gradient loss over all trained weights, [P]."""
        self.policy.model.zero_grad(set_to_none=True)
        logp = self.scores(backend, train=True)
        (logp.sum(dim=1) * torch.linspace(-1, 1, len(self.rows))).sum().backward()
        parts = [p.grad.reshape(-1) for p in self.policy.model.parameters() if p.grad is not None]
        self.policy.model.zero_grad(set_to_none=True)
        return torch.cat(parts)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Half:
    model, data = tiny_module.make_files(tmp_path_factory.mktemp(request.param), sft=1, train=3, test=1, family=request.param)
    tiny = tiny_module.load(model, data)
    policy = load_policy(str(model), tiny.bundle, device="cpu", dtype="bfloat16", trains=PARTS)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight") if request.param == "qwen3_vl" else ("q_proj.weight", "k_proj.weight")):
                p.mul_(SHARP)
    exact = copy.copy(policy)
    exact.compute = torch.float32
    freeze(policy, ("vision",))
    prompts = tiny.prompts(3)
    requests = [Request(prompt=p, ks=(0, 1, 2), seeds=(5, 6, 7 + n)) for n, p in enumerate(prompts)]
    vision = VisionCache(tiny.store, budget_bytes=2**26)
    groups = HFEngine(policy, vision).generate(requests, GenerationSettings(max_new_tokens=24))
    answers = [(g, prompt, rollout) for g, (prompt, group) in enumerate(zip(prompts, groups, strict=True)) for rollout in group]
    rows = [Row(index=n, group=g, prompt=prompt, response=rollout.ids) for n, (g, prompt, rollout) in enumerate(answers)]
    sampled = [torch.tensor(rollout.logprobs) for _, _, rollout in answers]
    return Half(policy, exact, rows, sampled, vision, tiny.bundle.forbidden_ids, str(model))


@pytest.mark.parametrize("backend", _BACKENDS)
def test_a_packed_row_equals_one_row_per_answer(half: Half, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = kernels.install(monkeypatch)
    with torch.no_grad():
        true, plain, packed = half.scores(None, exact=True), half.scores(None), half.scores(backend)
    rounding = half.gap(plain, true)
    assert 1e-3 < rounding < 0.1, "the layout `repeat` is what transformers computes: its rounding is the measure"
    assert half.gap(packed, true) < 1.5 * rounding, "as near to float32 as the plain layout"
    assert half.gap(packed, plain) < rounding
    gradients = [half.gradient(None), half.gradient(backend)]
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 0.25
    assert set(called) == ({backend} & set(kernels.EMULATED))


def test_the_sampler_and_the_trainer_agree_within_rounding(half: Half) -> None:
    sampled = torch.nn.utils.rnn.pad_sequence(half.sampled, batch_first=True)
    with torch.no_grad():
        true, trained = half.scores(None, exact=True), half.scores("merge")
    rounding = half.gap(trained, true)
    assert half.gap(sampled, trained) < 0.6 * rounding, "nearer to each other than both are to float32: they round alike"


def test_decoding_never_rounds_its_scores() -> None:
    """Scores near 100 differ by 0.25: in bfloat16 they would be one number, and the answer the mean of two values."""
    grid = DecodeGrid(width=1, longest=8, device=torch.device("cpu"))
    key = torch.zeros(1, 1, 2, 8, dtype=torch.bfloat16)
    key[0, 0, :, 0], key[0, 0, 1, 1] = 10.0, 0.25
    value = torch.zeros_like(key)
    value[0, 0, 1] = 1.0
    grid.admit([0], [1], [2], [(key, value)])
    grid.advance()
    query = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    query[..., 0], query[..., 1] = 10.0, 1.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = grid.attend(0, query, torch.full_like(query, -100.0), torch.zeros_like(query), 1.0)
    assert float(out[0, 0, 0, 0]) == pytest.approx(1 / (1 + 2.718281828**-0.25), abs=0.01)


def test_keys_are_kept_in_the_type_that_the_kernels_read(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.dtype] = []
    real = DecodeGrid.admit

    def admit(self: DecodeGrid, slots, counts, lengths, layers) -> None:
        kept.extend(x.dtype for pair in layers for x in pair)
        real(self, slots, counts, lengths, layers)

    monkeypatch.setattr(DecodeGrid, "admit", admit)
    request = Request(prompt=half.rows[0].prompt, ks=(0,), seeds=(1,))
    HFEngine(half.policy, half.vision).generate([request], GenerationSettings(max_new_tokens=2))
    assert set(kept) == {torch.bfloat16}


def test_one_type_is_left_alone() -> None:
    """In float32 nothing is copied or rounded: the recorded tensors are those that came in."""
    layout = layout_of([(3, (2, 1))])
    q, k, v = (torch.randn(1, 2, layout.tokens, 8) for _ in range(3))
    record: list[tuple[torch.Tensor, torch.Tensor]] = []
    out, _ = prefix_attention(None, q, k, v, None, fallback=lambda *_, **__: None, prefix_layout=layout, record=record)
    assert record[0][0] is k
    assert record[0][1] is v
    assert out.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float16", "half", "float64"])
def test_other_types_are_refused(tiny_files: tuple[Path, Path], tiny: tiny_module.Tiny, dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"expected one of float32, bfloat16, got '{dtype}'"):
        load_policy(str(tiny_files[0]), tiny.bundle, device="cpu", dtype=dtype)


class Casts(TorchDispatchMode):
    """How often each of some tensors is brought to 16 bits."""

    def __init__(self, watched: Iterable[torch.Tensor]):
        super().__init__()
        self.counts = {t.data_ptr(): 0 for t in watched}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name == "aten::_to_copy" and args[0].data_ptr() in self.counts:
            self.counts[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("trains", [(), ("vision", "projector"), PARTS], ids=["none", "tower", "all"])
def test_frozen_weights_are_never_cast_in_a_rollout_and_others_once(half: Half, trains: tuple[Part, ...]) -> None:
    """The output matrix and biases too, however many tokens are drawn."""
    policy = load_policy(half.folder, half.policy.bundle, device="cpu", dtype="bfloat16", trains=trains)
    named = dict(policy.model.named_parameters())
    kept = {name for name, p in named.items() if p.dtype == torch.bfloat16}
    assert (policy.head.dtype == torch.bfloat16) == ("language" not in trains)
    request = Request(prompt=half.rows[0].prompt, ks=(0, 1), seeds=(1, 2))
    with Casts(named.values()) as casts:
        answers = HFEngine(policy, VisionCache(half.vision.pixels, budget_bytes=2**26)).generate(
            [request], GenerationSettings(max_new_tokens=12)
        )
    assert max(len(r.ids) for r in answers[0]) > 2
    assert all(casts.counts[named[name].data_ptr()] == 0 for name in kept)
    # transposed, the embedding of a tied model is the output matrix; norms and the tables of positions are no products
    products = [p for name, p in named.items() if name not in kept and p.ndim == 2 and "embed" not in name]
    assert {casts.counts[p.data_ptr()] for p in products} == ({1} if trains else set())
    # autocast keeps no copy of a view, as which a delta net's filter of four columns goes into its convolution
    assert max(casts.counts[p.data_ptr()] for name, p in named.items() if ".conv1d." not in name) <= 1
