"""Low-rank adapters: the update of eq. 3 and nothing else, through every path that a policy takes."""

from __future__ import annotations

import copy
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support import cases
from tests.support import tiny as tiny_module
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.config.schema import OptimSection
from vlmrl.errors import ConfigError
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.forward import LAYOUTS, TokenLogprobs
from vlmrl.policy.load import freeze, load_policy
from vlmrl.policy.lora import add_adapters, fold_adapters, merged_state, save_adapter
from vlmrl.policy.model import LoraSpec, Policy
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.run.export import export
from vlmrl.train.adamw import make_optimizer
from vlmrl.train.tensors import load_optimizer, optimizer_tensors, read_tensors, write_tensors
from vlmrl.types import GenerationSettings, Request

SPEC = LoraSpec(rank=4, alpha=6.0)


def seed_of(name: str) -> int:
    return rng.key(5, "lora", name)


def plain(tiny: Tiny) -> Policy:
    policy = copy.copy(tiny.policy)
    policy.model = copy.deepcopy(tiny.policy.model)
    return policy


def adapted(tiny: Tiny, spec: LoraSpec = SPEC, *, trained: bool = True) -> Policy:
    """A policy with adapters; `trained` gives B values, so that the adapters do something."""
    policy = plain(tiny)
    add_adapters(policy, spec, seed_of=seed_of, base="the-base")
    if trained:
        stir(policy)
    return policy


def stir(policy: Policy, size: float = 0.1) -> None:
    assert policy.lora is not None
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for layer in policy.lora.layers.values():
            b = layer.lora_B["default"].weight
            b.copy_(size * torch.randn(b.shape, generator=generator))


def cache(tiny: Tiny) -> VisionCache:
    return VisionCache(tiny.store, budget_bytes=2**28)


def rows(tiny: Tiny) -> list[Row]:
    generator = torch.Generator().manual_seed(3)
    usable = [i for i in range(tiny.policy.head.shape[0]) if i not in tiny.bundle.special_ids]
    out: list[Row] = []
    for group, prompt in enumerate(tiny.prompts(2)):
        for length in (7, 4, 11):
            ids = tuple(usable[int(i)] for i in torch.randint(len(usable), (length,), generator=generator))
            out.append(Row(index=len(out), group=group, prompt=prompt, response=ids))
    return out


def score(
    policy: Policy, tiny: Tiny, layout: str = "shared_prefix", *, train: bool = False, vision: VisionCache | None = None
) -> TokenLogprobs:
    how = LAYOUTS[layout]
    batch = how.pack(rows(tiny), policy.positions, policy.device, pad_id=0)
    return how.forward(policy, batch, vision or cache(tiny), temperature=0.7, forbidden=(), train=train)


@torch.no_grad()
def log_probs(policy: Policy, tiny: Tiny) -> torch.Tensor:
    return score(policy, tiny).logp_BT


# --- what is put in ---


def test_fresh_adapters_change_nothing(tiny: Tiny) -> None:
    before = torch.random.get_rng_state()
    policy = adapted(tiny, trained=False)
    assert torch.equal(torch.random.get_rng_state(), before), "the global generator must not move"
    assert torch.equal(log_probs(policy, tiny), log_probs(tiny.policy, tiny))
    assert not policy.model.training


def test_default_places_are_the_language_models_linear_layers(tiny: Tiny) -> None:
    policy = adapted(tiny)
    assert policy.lora is not None
    expected = {
        name
        for name, module in tiny.policy.model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith("model.language_model.layers.")
    }
    layers = tiny.policy.core.config.get_text_config().num_hidden_layers
    assert set(policy.lora.layers) == expected
    assert len(expected) == 7 * layers
    assert not policy.lora.on_vision


def test_with_vision_all_linear_layers_of_the_tower_too(tiny: Tiny) -> None:
    policy = adapted(tiny, LoraSpec(rank=2, alpha=2.0, targets=("q_proj",), vision=True))
    assert policy.lora is not None
    linear = [n for n, m in tiny.policy.model.named_modules() if isinstance(m, torch.nn.Linear)]
    expected = [n for n in linear if n.startswith("model.visual.") or n.endswith("self_attn.q_proj")]
    assert sorted(policy.lora.layers) == sorted(expected)
    assert any(".merger." in name for name in expected)
    assert policy.lora.on_vision


def test_first_values_follow_the_seed_of_each_layer_alone(tiny: Tiny) -> None:
    whole, part = adapted(tiny, trained=False), adapted(tiny, LoraSpec(rank=4, alpha=6.0, targets=("up_proj",)), trained=False)
    assert whole.lora is not None
    assert part.lora is not None
    for name, layer in part.lora.layers.items():
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        draws = np.random.Generator(np.random.Philox(seed_of(name))).random((4, layer.in_features))
        expected = (draws * 2 - 1) / math.sqrt(layer.in_features)
        assert np.abs(a.detach().numpy() - expected).max() < 1e-7
        assert torch.equal(a, whole.lora.layers[name].lora_A["default"].weight), "other targets must not matter"
        assert not b.any()
    firsts = [float(layer.lora_A["default"].weight.detach()[0, 0]) for layer in whole.lora.layers.values()]
    assert len(set(firsts)) == len(firsts), "no two layers start alike"


def test_a_layer_computes_equation_3(tiny: Tiny) -> None:
    policy = adapted(tiny)
    assert policy.lora is not None
    for name in ("model.language_model.layers.0.self_attn.q_proj", "model.language_model.layers.1.mlp.down_proj"):
        layer, original = policy.lora.layers[name], tiny.policy.model.get_submodule(name)
        x = torch.randn(3, layer.in_features)
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        expected = original(x) + 6.0 / 4 * (x @ a.T) @ b.T
        assert (layer(x) - expected).abs().max() < 1e-5
        assert (layer(x) - original(x)).abs().max() > 1e-3
        assert (policy.lora.merged(name) - (original.weight + 1.5 * b @ a)).abs().max() < 1e-6


def test_what_cannot_be_put_in_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"model\.lora\.targets: c_attn: .* down_proj, gate_proj"):
        adapted(tiny, LoraSpec(rank=2, alpha=1.0, targets=("q_proj", "c_attn")))
    with pytest.raises(ConfigError, match="nothing is listed"):
        adapted(tiny, LoraSpec(rank=2, alpha=1.0, targets=()))
    with pytest.raises(ValueError, match="already"):
        add_adapters(adapted(tiny), SPEC, seed_of=seed_of, base="x")
    with pytest.raises(ValueError, match="no adapters"):
        tiny.policy.without_adapters()
    with pytest.raises(ValueError, match="no adapters"):
        save_adapter(tiny.policy, Path("nowhere"), {})
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"peft package.*vlmrl\[lora\]"):
        adapted(tiny)


# --- what trains ---


def test_only_adapters_train(tiny: Tiny) -> None:
    policy = adapted(tiny)
    assert policy.lora is not None
    named = dict(freeze(policy, ()))
    assert set(named) == policy.lora.names
    assert len(named) == 2 * len(policy.lora.layers)
    assert {n for n, p in policy.model.named_parameters() if p.requires_grad} == set(named)
    assert not policy.vision_trains
    assert set(dict(freeze(policy, ("vision", "projector")))) == set(named)
    with pytest.raises(ConfigError, match="only adapters train"):
        freeze(policy, ("language",))


def test_freeze_chooses_among_the_adapters_of_the_tower(tiny: Tiny) -> None:
    policy = adapted(tiny, LoraSpec(rank=2, alpha=2.0, vision=True))
    everything = set(dict(freeze(policy, ())))
    assert policy.vision_trains
    mergers = set(dict(freeze(policy, ("vision", "language"))))
    assert mergers
    assert all(".merger." in name and ".lora_" in name for name in mergers)
    assert policy.vision_trains
    language = set(dict(freeze(policy, ("vision", "projector"))))
    assert not policy.vision_trains
    assert language == {name for name in everything if ".visual." not in name}


OF_FAMILIES = [(family, vision) for family in ("qwen2_5_vl", "qwen3_vl") for vision in (False, True)]


@pytest.mark.parametrize(("family", "vision"), cases.some(OF_FAMILIES, {("qwen2_5_vl", False), ("qwen3_vl", True)}))
def test_shared_prefix_equals_one_row_per_answer(family: Any, vision: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = tiny_module.make_files(tmp_path_factory.mktemp(family), sft=2, train=3, test=2, family=family)
    tiny = tiny_module.load(*files)
    policy = tiny.policy
    policy.model.double()
    add_adapters(policy, LoraSpec(rank=4, alpha=6.0, vision=vision), seed_of=seed_of, base="x")
    stir(policy)
    named = dict(freeze(policy, ()))
    results: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
    for layout in ("repeat", "shared_prefix"):
        policy.model.zero_grad(set_to_none=True)
        scored = score(policy, tiny, layout, train=True)
        advantage = torch.tensor([0.7, -1.1, 0.4], dtype=torch.float64).repeat(2)
        (-(scored.logp_BT * advantage[:, None]).sum() / 6).backward()
        assert {n for n, p in policy.model.named_parameters() if p.grad is not None} == set(named)
        assert policy.head.grad is None
        results.append((scored.logp_BT.detach(), {n: p.grad.clone() for n, p in named.items() if p.grad is not None}))
    (logp_a, grad_a), (logp_b, grad_b) = results
    assert (logp_a - logp_b).abs().max() < 1e-12
    assert max(float((grad_a[n] - grad_b[n]).abs().max()) for n in named) < 1e-6, "the models round to float32 inside"
    assert max(float(g.abs().max()) for g in grad_a.values()) > 1e-2
    assert vision == any(".visual." in n and float(g.abs().max()) > 1e-6 for n, g in grad_a.items())


def test_gradient_checkpointing_gives_the_same_gradient(tiny: Tiny) -> None:
    policy = adapted(tiny)
    named = dict(freeze(policy, ()))

    def gradient() -> dict[str, torch.Tensor]:
        policy.model.zero_grad(set_to_none=True)
        score(policy, tiny, train=True).logp_BT.sum().backward()
        return {n: p.grad.clone() for n, p in named.items() if p.grad is not None}

    plain_ = gradient()
    policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    policy.model.train()
    again = gradient()
    assert set(plain_) == set(again) == set(named)
    assert all(torch.allclose(plain_[n], again[n], rtol=1e-5, atol=1e-7) for n in named)


# --- the reference ---


@pytest.mark.parametrize("vision", [False, True])
def test_the_reference_is_the_base_exactly(vision: bool, tiny: Tiny, tiny_files: tuple[Path, Path]) -> None:
    policy = adapted(tiny, LoraSpec(rank=4, alpha=6.0, vision=vision))
    freeze(policy, ())
    separate = load_policy(str(tiny_files[0]), tiny.bundle, device="cpu")
    assert torch.equal(log_probs(policy.without_adapters(), tiny), log_probs(separate, tiny))
    assert (log_probs(policy, tiny) - log_probs(separate, tiny)).abs().max() > 1e-3, "the adapters must do something"
    if vision:
        handle = tiny.prompts(1)[0].media[0]
        view, base, live = (cache(tiny).features(p, [handle], train=False) for p in (policy.without_adapters(), separate, policy))
        assert torch.equal(view[handle.key].merged, base[handle.key].merged)
        assert not torch.allclose(live[handle.key].merged, base[handle.key].merged, atol=1e-3)


def test_looking_at_the_reference_leaves_the_policy_as_it_was(tiny: Tiny) -> None:
    policy = adapted(tiny, LoraSpec(rank=4, alpha=6.0, vision=True))
    freeze(policy, ("vision",))
    before = {n: p.requires_grad for n, p in policy.model.named_parameters()}
    live, weights = log_probs(policy, tiny), weights_fingerprint(policy)
    view = policy.without_adapters()
    assert not view.vision_trains
    # the engine enters the context again inside: for the features, and for each prompt that it admits
    requests = [Request(prompt=p, ks=(0,), seeds=(1,)) for p in tiny.prompts(2)]
    settings = GenerationSettings(max_new_tokens=8, temperature=0.0)
    got = HFEngine(view, cache(tiny), max_num_seqs=1).generate(requests, settings)
    expected = HFEngine(tiny.policy, cache(tiny), max_num_seqs=1).generate(requests, settings)
    assert [r.ids for (r,) in got] == [r.ids for (r,) in expected]
    assert [r.logprobs for (r,) in got] == [r.logprobs for (r,) in expected]
    with pytest.raises(KeyError), view.autocast():
        raise KeyError
    assert {n: p.requires_grad for n, p in policy.model.named_parameters()} == before
    assert torch.equal(log_probs(policy, tiny), live)
    assert weights_fingerprint(policy) == weights


# --- export ---


def test_export_opens_without_peft_and_says_the_same(tiny: Tiny, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    policy = adapted(tiny, LoraSpec(rank=4, alpha=6.0, vision=True))
    live, weights = log_probs(policy, tiny), weights_fingerprint(policy)
    export(policy, tmp_path / "final")
    assert weights_fingerprint(policy) == weights, "the live policy is left as it is"
    assert torch.equal(log_probs(policy, tiny), live)
    opened = load_policy(str(tmp_path / "final"), tiny.bundle, device="cpu")
    assert opened.lora is None
    assert (log_probs(opened, tiny) - live).abs().max() < 1e-5
    assert (log_probs(tiny.policy, tiny) - live).abs().max() > 1e-3
    base, merged = (load_file(folder / "model.safetensors") for folder in (tiny_files[0], tmp_path / "final"))
    assert {n: (t.shape, t.dtype) for n, t in merged.items()} == {n: (t.shape, t.dtype) for n, t in base.items()}
    changed = {n for n in base if not torch.equal(base[n], merged[n])}
    assert policy.lora is not None
    assert len(changed) == len(policy.lora.layers)
    assert not list((tmp_path / "final").glob("adapter_*")), "transformers would take those for an adapter folder"


def test_the_adapter_alone_opens_with_peft_and_generates_what_the_engine_does(
    tiny: Tiny, tiny_files: tuple[Path, Path], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    from vlmrl.policy.pack import prompt_positions

    policy = adapted(tiny)
    export(policy, tmp_path / "final")
    folder = tmp_path / "final" / "adapter"
    assert sorted(p.name for p in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    written = json.loads((folder / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"], written["base_model_name_or_path"]) == (4, 6.0, "the-base")
    theirs = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(tiny_files[0], dtype=torch.float32), folder).eval()
    assert policy.lora is not None
    assert {n for n, _ in theirs.named_parameters() if ".lora_" in n} == {f"base_model.model.{n}" for n in policy.lora.names}
    prompts = tiny.prompts(6)
    requests = [Request(prompt=p, ks=(0,), seeds=(0,)) for p in prompts]
    settings = GenerationSettings(max_new_tokens=12, temperature=0.0)
    answers = HFEngine(policy, cache(tiny)).generate(requests, settings)
    others = HFEngine(tiny.policy, cache(tiny)).generate(requests, settings)
    assert [a.ids for (a,) in answers] != [o.ids for (o,) in others], "the adapters must change an answer"
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        ids, (handle,) = torch.tensor([prompt.ids]), prompt.media
        out = theirs.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            position_ids=torch.cat([torch.arange(len(prompt.ids))[None, None], prompt_positions(prompt, policy.positions)[:, None]]),
            pixel_values_videos=tiny.bundle.pixel_values(tiny.store.get_key(handle.key).pixel_values, "video"),
            video_grid_thw=torch.tensor([handle.grid_thw]),
            max_new_tokens=12,
            do_sample=False,
            suppress_tokens=list(tiny.bundle.forbidden_ids),
        )
        assert out[0, len(prompt.ids) :].tolist() == list(answer.ids), prompt.sample.id


def test_folded_weights_are_the_exported_ones_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    policy = adapted(tiny, LoraSpec(rank=4, alpha=6.0, vision=True))
    freeze(policy, ())
    export(policy, tmp_path / "stage")
    merged = {name: tensor.clone() for name, tensor in merged_state(policy).items()}
    version = policy.vision_version
    fold_adapters(policy)
    assert policy.lora is None
    assert policy.vision_version == version + 1, "features of the tower that it was are stale"
    assert not policy.vision_trains
    live = policy.model.state_dict()
    assert set(live) == set(merged) == set(tiny.policy.model.state_dict())
    assert all(torch.equal(live[n], merged[n]) for n in live)
    opened = load_policy(str(tmp_path / "stage"), tiny.bundle, device="cpu")
    assert weights_fingerprint(opened) == weights_fingerprint(policy)
    add_adapters(policy, SPEC, seed_of=seed_of, base="the-base")
    assert torch.equal(log_probs(policy, tiny), log_probs(opened, tiny)), "the next stage starts from the merged weights"
    fold_adapters(opened)
    assert torch.equal(log_probs(policy, tiny), log_probs(opened, tiny)), "nothing to fold is no error"


# --- checkpoints ---


def _update(policy: Policy, tiny: Tiny, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    scored = score(policy, tiny, train=True)
    (scored.logp_BT * torch.linspace(-1, 1, 6)[:, None]).mean().backward()
    optimizer.step()


def test_a_checkpoint_holds_the_adapters_and_goes_on_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    cfg = OptimSection(lr=1e-2)

    def start() -> tuple[Policy, dict[str, torch.nn.Parameter], torch.optim.Optimizer, list[str]]:
        policy = adapted(tiny, trained=False)
        named = freeze(policy, ("vision",))
        optimizer, order = make_optimizer(named, cfg)
        return policy, dict(named), optimizer, order

    policy, named, optimizer, order = start()
    _update(policy, tiny, optimizer)
    tensors, groups = optimizer_tensors(optimizer, order)
    write_tensors(tmp_path / "weights.safetensors", named)
    write_tensors(tmp_path / "optimizer.safetensors", tensors)
    _update(policy, tiny, optimizer)

    saved = read_tensors(tmp_path / "weights.safetensors")
    assert policy.lora is not None
    assert set(saved) == policy.lora.names
    size = sum(p.numel() for p in policy.model.parameters())
    assert sum(t.numel() for t in saved.values()) < size / 4, "the base is not in the checkpoint"
    other, parameters, optimizer, order = start()
    with torch.no_grad():
        for name, value in saved.items():
            parameters[name].copy_(value)
    load_optimizer(optimizer, order, read_tensors(tmp_path / "optimizer.safetensors"), groups)
    _update(other, tiny, optimizer)
    assert weights_fingerprint(other) == weights_fingerprint(policy)
    assert not torch.equal(log_probs(other, tiny), log_probs(tiny.policy, tiny))
