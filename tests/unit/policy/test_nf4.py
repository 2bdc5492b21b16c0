"""Decoder layers in 4 bits: the values against the paper's, the model against one with the same weights in 32 bits, and what trains."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny import Tiny, make_files
from tests.support.tiny import load as open_files
from tests.unit.policy.test_lora import SPEC, cache, log_probs, score, seed_of, stir
from vlmrl.errors import ConfigError
from vlmrl.policy import nf4
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.load import freeze, load_policy
from vlmrl.policy.lora import add_adapters, fold_adapters, merged_state
from vlmrl.policy.model import LoraSpec, Policy
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.run.export import export
from vlmrl.types import GenerationSettings, Request

pytest.importorskip("bitsandbytes")

LEVELS = (-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0)
LEVELS += (0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0)
"""The 16 values of NF4: arXiv:2305.14314, appendix E."""


def quantised(tiny_files: tuple[Path, Path], tiny: Tiny, dtype: str = "float32") -> Policy:
    return load_policy(str(tiny_files[0]), tiny.bundle, device="cpu", dtype=dtype, quantize="nf4")


def with_adapters(policy: Policy, spec: LoraSpec = SPEC) -> Policy:
    add_adapters(policy, spec, seed_of=seed_of, base="the-base")
    stir(policy)
    return policy


def plain_twin(policy: Policy, tiny_files: tuple[Path, Path], tiny: Tiny, dtype: str = "float32") -> Policy:
    """A model of plain layers that holds what the quantised one computes with."""
    twin = load_policy(str(tiny_files[0]), tiny.bundle, device="cpu", dtype=dtype)
    twin.model.load_state_dict(merged_state(policy))
    return twin


def test_values_are_those_of_the_paper(tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    """Every value is a level of appendix E times the scale of its block, and that scale is the block's largest to 8 bits."""
    policy = quantised(tiny_files, tiny)
    original = dict(tiny.policy.model.named_parameters())
    levels = torch.tensor(LEVELS)
    for name, layer in nf4.layers(policy.model).items():
        whole = original[f"{name}.weight"].detach()
        got = nf4.dense(layer)
        assert got.shape == whole.shape
        assert got.dtype == torch.float32
        blocks, true = got.reshape(-1, nf4.BLOCK), whole.reshape(-1, nf4.BLOCK)
        scale = blocks.abs().amax(1, keepdim=True)
        assert ((blocks / scale)[..., None] - levels).abs().amin(-1).max() < 1e-5
        # scales have 8 bits of a dynamic type (arXiv:2110.02861): within 4 % of the largest one of 256
        largest = true.abs().amax(1, keepdim=True)
        assert ((scale - largest).abs() <= 0.04 * largest.max()).all()
        half = 0.5 * (1 - 0.6961928)  # of the widest gap between levels
        assert ((blocks - true).abs() <= half * scale + (scale - largest).abs() + 1e-6).all()


def test_only_the_decoders_layers_are_in_4_bits(tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    policy = quantised(tiny_files, tiny)
    linear = {n for n, m in tiny.policy.model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert set(nf4.layers(policy.model)) == {n for n in linear if n.startswith("model.language_model.layers.")}
    before, now = dict(tiny.policy.model.named_parameters()), dict(policy.model.named_parameters())
    assert before.keys() == now.keys()
    others = [n for n in before if n.removesuffix(".weight") not in nf4.layers(policy.model)]
    assert any(n.startswith("model.visual.") for n in others)
    assert all(torch.equal(before[n], now[n]) for n in others)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 5e-2)])
def test_log_probs_are_those_of_the_same_weights_in_plain_layers(
    dtype: str, tolerance: float, tiny: Tiny, tiny_files: tuple[Path, Path]
) -> None:
    """float32: products of equal numbers in another order at most. bfloat16: the base's product and the adapter's are rounded apart here,
    and as one sum there, 2^-8 of activations each."""
    policy = with_adapters(quantised(tiny_files, tiny, dtype))
    got, expected = log_probs(policy, tiny), log_probs(plain_twin(policy, tiny_files, tiny, dtype), tiny)
    assert (got - expected).abs().max() < tolerance
    if dtype == "float32":
        assert (got - log_probs(tiny.policy, tiny)).abs().max() > 1e-3, "rounding to 4 bits shows"


def test_a_pass_changes_nothing_of_the_model(tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    """bitsandbytes' own layer would round biases to bfloat16 in place."""
    policy = with_adapters(quantised(tiny_files, tiny, "bfloat16"))
    assert any(name.endswith("q_proj.base_layer.bias") for name, _ in policy.model.named_parameters())
    before = weights_fingerprint(policy)
    log_probs(policy, tiny)
    freeze(policy, ())
    score(policy, tiny, train=True).logp_BT.sum().backward()
    assert weights_fingerprint(policy) == before
    assert {p.dtype for n, p in policy.model.named_parameters() if n.endswith("bias") and "lora" not in n} == {torch.bfloat16}


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_of_adapters_are_those_over_plain_layers(recompute: bool, tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    """Also those of the first layer, which pass through all others."""
    policy = quantised(tiny_files, tiny)
    twin = plain_twin(policy, tiny_files, tiny)
    grads: list[dict[str, torch.Tensor]] = []
    for one in (policy, twin):
        with_adapters(one)
        if recompute:
            one.model.gradient_checkpointing_enable({"use_reentrant": False})
            one.model.train()
        named = freeze(one, ())
        weigh = torch.linspace(-1, 1, 11)
        (score(one, tiny, train=True).logp_BT * weigh).sum().backward()
        grads.append({n: p.grad for n, p in named if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    assert policy.lora is not None
    assert len(grads[0]) == len(policy.lora.names)
    for name, gradient in grads[0].items():
        assert torch.allclose(gradient, grads[1][name], rtol=1e-3, atol=1e-5), name


def test_the_reference_is_the_quantised_base_exactly(tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    policy, base = with_adapters(quantised(tiny_files, tiny)), quantised(tiny_files, tiny)
    assert torch.equal(log_probs(policy.without_adapters(), tiny), log_probs(base, tiny))
    assert (log_probs(policy, tiny) - log_probs(base, tiny)).abs().max() > 1e-3


def test_the_engine_samples_what_the_trainer_scores(tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    policy = with_adapters(quantised(tiny_files, tiny))
    requests = [Request(prompt=p, ks=(0,), seeds=(1,)) for p in tiny.prompts(2)]
    settings = GenerationSettings(max_new_tokens=8, temperature=0.0)
    twin = plain_twin(policy, tiny_files, tiny)
    got, expected = (HFEngine(p, cache(tiny), max_num_seqs=1).generate(requests, settings) for p in (policy, twin))
    assert [r.ids for (r,) in got] == [r.ids for (r,) in expected]
    for (one,), (other,) in zip(got, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_the_export_is_a_plain_model_of_the_same_function(tiny: Tiny, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    spec = LoraSpec(rank=4, alpha=6.0, targets=("q_proj", "v_proj"), vision=True)  # most layers without an adapter
    policy = with_adapters(quantised(tiny_files, tiny), spec)
    live, weights = log_probs(policy, tiny), weights_fingerprint(policy)
    export(policy, tmp_path / "final")
    assert weights_fingerprint(policy) == weights
    base, merged = (load_file(folder / "model.safetensors") for folder in (tiny_files[0], tmp_path / "final"))
    assert {n: (t.shape, t.dtype) for n, t in merged.items()} == {n: (t.shape, t.dtype) for n, t in base.items()}
    assert "quantization_config" not in (tmp_path / "final" / "config.json").read_text()
    assert '"quantize": "nf4"' in (tmp_path / "final" / "vlmrl.json").read_text(), "what the adapter was trained over"
    opened = load_policy(str(tmp_path / "final"), tiny.bundle, device="cpu")
    assert (log_probs(opened, tiny) - live).abs().max() < 1e-5
    assert (tmp_path / "final" / "adapter" / "adapter_model.safetensors").is_file()


def test_adapters_are_not_folded_into_4_bits(tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="adapters cannot be added to weights in nf4"):
        fold_adapters(with_adapters(quantised(tiny_files, tiny)))


def test_loading_twice_gives_the_same_bits_and_the_fingerprint_sees_them(tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    one, two = (quantised(tiny_files, tiny) for _ in range(2))
    before = weights_fingerprint(one)
    assert before == weights_fingerprint(two) != weights_fingerprint(tiny.policy)
    layer = next(iter(nf4.layers(two.model).values()))
    layer.weight.quant_state.absmax[0] ^= 1
    assert weights_fingerprint(two) != before, "scales belong to the weights"


def test_qwen3_vl_too(tmp_path: Path) -> None:
    files = make_files(tmp_path, sft=2, train=3, test=2, family="qwen3_vl")
    tiny = open_files(*files)
    policy = with_adapters(quantised(files, tiny))
    assert (log_probs(policy, tiny) - log_probs(plain_twin(policy, files, tiny), tiny)).abs().max() < 1e-5


# --- refused ---


def test_quantised_files_are_refused(tiny: Tiny, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    import json
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(tiny_files[0], folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"quantised already; take the original ones, and model\.quantize: nf4"):
        load_policy(str(folder), tiny.bundle, device="cpu")


def test_weights_that_an_engine_places_are_refused(tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match=r"model\.quantize: 'nf4' is for the Qwen-VL families with train\.sharding: ddp"):
        load_policy(str(tiny_files[0]), tiny.bundle, device="cpu", quantize="nf4", read="host")


def test_a_missing_package_is_named(tiny: Tiny, tiny_files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError("No module named 'bitsandbytes'")
        return real(name, *args, **kwargs)

    nf4._layer.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'vlmrl\[bitsandbytes\]'"):
        quantised(tiny_files, tiny)
