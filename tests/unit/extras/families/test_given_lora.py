"""Adapters on families through their own forward: where they sit, that B = 0 changes nothing, that they alone train, and that what is
exported is what was trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.given import load_given, make_model, make_rows
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.errors import ConfigError
from vlmrl.policy.forward import layout_of
from vlmrl.policy.load import freeze, load_policy
from vlmrl.policy.lora import add_adapters, fold_adapters, merged_state
from vlmrl.policy.model import LoraSpec, Policy
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.run.export import export

pytestmark = pytest.mark.not_fast  # builds models

FAMILIES: Mapping[str, frozenset[str]] = {
    "gemma3": frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
    "lfm2_vl": frozenset({"q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"}),
}
"""Names of the linear layers of the decoder. LFM2's attention calls the last one `out_proj`, its convolutions have two of their own."""
SPEC = LoraSpec(rank=2, alpha=4.0)


@pytest.fixture(scope="module", params=list(FAMILIES))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp(request.param)
    world = make_rows(folder / "world", video=False, train=2, test=1)
    return load_given(make_model(request.param, folder / "model"), world)


def fresh(given: Tiny) -> Policy:
    return load_policy(str(given.policy.model.name_or_path), given.bundle, device="cpu")


def adapted(given: Tiny, spec: LoraSpec = SPEC, *, stirred: bool = True) -> Policy:
    policy = fresh(given)
    add_adapters(policy, spec, seed_of=lambda name: rng.key(5, "lora", name), base="the-base")
    if stirred:
        assert policy.lora is not None
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for layer in policy.lora.layers.values():
                b = layer.lora_B["default"].weight
                b.copy_(0.1 * torch.randn(b.shape, generator=generator))
    return policy


def logp(policy: Policy, given: Tiny, layout: str = "repeat", *, train: bool = False) -> torch.Tensor:
    answer = given.bundle.tokenize("yes no")
    rows = [
        Row(index=2 * g + n, group=g, prompt=prompt, response=tuple(answer[: 3 + n]))
        for g, prompt in enumerate(given.prompts(2))
        for n in range(2)
    ]
    how = layout_of(policy, layout)
    batch = how.pack(rows, policy.positions, policy.device, pad_id=given.bundle.end_ids[0])
    vision = VisionCache(given.store, budget_bytes=2**28)
    return how.forward(policy, batch, vision, temperature=1.0, forbidden=given.bundle.forbidden_ids, train=train).logp_BT


def test_adapters_sit_on_all_linear_layers_of_the_decoder_and_change_nothing_at_first(given: Tiny) -> None:
    policy = adapted(given, stirred=False)
    assert policy.lora is not None
    assert {name.rpartition(".")[2] for name in policy.lora.layers} == FAMILIES[given.bundle.family.name]
    assert all(given.bundle.family.part_of(name) == "language" for name in policy.lora.layers)
    assert not policy.lora.on_vision
    with torch.no_grad():
        assert torch.equal(logp(policy, given), logp(given.policy, given))


def test_a_shorter_list_of_targets_is_kept_and_an_unknown_one_refused(given: Tiny) -> None:
    policy = adapted(given, LoraSpec(rank=2, alpha=4.0, targets=("q_proj",)))
    assert policy.lora is not None
    assert {name.rpartition(".")[2] for name in policy.lora.layers} == {"q_proj"}
    with pytest.raises(ConfigError, match=r"model\.lora\.targets: nothing_like_it: .* has "):
        adapted(given, LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "nothing_like_it")))


def test_layers_that_peft_takes_for_experts_are_refused_by_name(tmp_path: Path) -> None:
    """peft rewrites the targets of some mixtures of experts to tensors of all experts, by the last part of their names: shared experts and
    dense layers have the same."""
    world = make_rows(tmp_path / "world", video=False, train=2, test=1)
    given = load_given(make_model("glm4v_moe", tmp_path / "model"), world)
    takes = r"model\.lora\.targets: .*gate_proj, up_proj.*'glm4v_moe'.*; take k_proj, o_proj, q_proj, v_proj$"
    with pytest.raises(ConfigError, match=takes):
        adapted(given)
    with pytest.raises(ConfigError, match=r"model\.lora\.targets: up_proj: .*; take q_proj$"):
        adapted(given, LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "up_proj")))
    policy = adapted(given, LoraSpec(rank=2, alpha=4.0, targets=("k_proj", "o_proj", "q_proj", "v_proj")), stirred=False)
    assert policy.lora is not None
    assert {name.rpartition(".")[2] for name in policy.lora.layers} == {"k_proj", "o_proj", "q_proj", "v_proj"}
    with torch.no_grad():
        assert torch.equal(logp(policy, given), logp(given.policy, given))


def test_with_vision_the_tower_has_adapters_and_features_depend_on_them(given: Tiny) -> None:
    policy = adapted(given, LoraSpec(rank=2, alpha=4.0, vision=True))
    assert policy.lora is not None
    assert policy.lora.on_vision
    parts = {given.bundle.family.part_of(f"{name}.weight") for name in policy.lora.layers}
    assert "vision" in parts
    freeze(policy, ("language",))
    with torch.no_grad():
        changed = (logp(policy, given) - logp(given.policy, given)).abs().max()
    assert float(changed) > 1e-4


def test_layouts_agree_and_adapters_alone_have_gradients(given: Tiny) -> None:
    policy = adapted(given)
    named = freeze(policy, ())
    assert policy.lora is not None
    assert {name for name, _ in named} == policy.lora.names
    whole: dict[str, list[torch.Tensor]] = {}
    for layout in ("repeat", "shared_prefix"):
        out = logp(policy, given, layout, train=True)
        whole[layout] = list(torch.autograd.grad(out.sum(), [p for _, p in named]))
    assert all(float(g.abs().max()) > 0 for g in whole["repeat"])
    size = sum(float(g.square().sum()) for g in whole["repeat"]) ** 0.5
    gap = sum(float((a - b).square().sum()) for a, b in zip(*whole.values(), strict=True)) ** 0.5
    assert gap < 2e-3 * size


def test_off_is_the_base_and_merged_is_the_adapted_model(given: Tiny) -> None:
    policy = adapted(given)
    with torch.no_grad():
        plain, mine = logp(given.policy, given), logp(policy, given)
        assert torch.equal(logp(policy.without_adapters(), given), plain)
        assert float((mine - plain).abs().max()) > 1e-3
        merged = fresh(given)
        merged.model.load_state_dict(merged_state(policy))
        torch.testing.assert_close(logp(merged, given), mine, rtol=0, atol=1e-4)
        fold_adapters(policy)
        assert torch.equal(logp(policy, given), logp(merged, given))


def test_an_exported_folder_opens_merged_and_its_adapter_opens_with_peft(given: Tiny, tmp_path: Path) -> None:
    from peft import PeftModel

    policy = adapted(given)
    with torch.no_grad():
        mine = logp(policy, given)
    export(policy, tmp_path / "out")
    opened = load_policy(str(tmp_path / "out"), given.bundle, device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(logp(opened, given), mine, rtol=0, atol=1e-4)
    base = fresh(given)
    PeftModel.from_pretrained(base.model, str(tmp_path / "out" / "adapter"))
    with torch.no_grad():
        torch.testing.assert_close(logp(base, given), mine, rtol=0, atol=1e-5)
    assert all(".lora_A." in name or ".lora_B." in name for name in load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors"))


def test_the_plain_policy_is_left_as_it_was(given: Tiny) -> None:
    before = copy.deepcopy(given.policy.model.state_dict())
    adapted(given)
    assert all(torch.equal(before[name], tensor) for name, tensor in given.policy.model.state_dict().items())
