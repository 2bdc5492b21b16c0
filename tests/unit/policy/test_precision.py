"""Weights have the type of the forward pass where they do not train, from the file on, and that changes no number of a file in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.support import cases, given
from tests.support import tiny as tiny_module
from tests.support.tiny import Tiny
from vlmrl.config.schema import Config
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.load import freeze, load_policy
from vlmrl.policy.lora import add_adapters, fold_adapters, merged_state
from vlmrl.policy.model import LoraSpec, Policy
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.run.export import export
from vlmrl.types import PARTS, GenerationSettings, Part, Request

pytestmark = pytest.mark.not_fast  # builds models

TOWER: tuple[Part, ...] = ("vision", "projector")


@dataclass
class World:
    """A tiny model whose file is in bfloat16, and some rows."""

    tiny: Tiny
    folder: Path

    def load(self, trains: tuple[Part, ...], dtype: str = "bfloat16", folder: Path | None = None) -> Policy:
        return load_policy(str(folder or self.folder), self.tiny.bundle, device="cpu", dtype=dtype, trains=trains)

    def adapted(self, spec: LoraSpec | None = None, trains: tuple[Part, ...] = ()) -> Policy:
        policy = self.load(trains)
        add_adapters(policy, spec or LoraSpec(rank=4, alpha=6.0), seed_of=lambda name: sum(name.encode()), base="base")
        assert policy.lora is not None
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for layer in policy.lora.layers.values():
                b = layer.lora_B["default"].weight
                b.copy_(torch.randn(b.shape, generator=generator) * 0.05)
        return policy

    def rollouts(self, policy: Policy) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        requests = [Request(prompt=p, ks=(0, 1), seeds=(5, 6 + n)) for n, p in enumerate(self.tiny.prompts(2))]
        groups = HFEngine(policy, VisionCache(self.tiny.store, budget_bytes=2**26)).generate(
            requests, GenerationSettings(max_new_tokens=12)
        )
        return [(rollout.ids, rollout.logprobs) for group in groups for rollout in group]

    def logp(self, policy: Policy, *, train: bool = False) -> torch.Tensor:
        rows = [Row(index=k, group=0, prompt=self.tiny.prompts(1)[0], response=(30, 31 + k, 40, 33)) for k in range(3)]
        layout = LAYOUTS["shared_prefix"]
        batch = layout.pack(rows, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
        vision = VisionCache(self.tiny.store, budget_bytes=2**26)
        return layout.forward(policy, batch, vision, temperature=1.0, forbidden=(), train=train).logp_BT


@pytest.fixture(scope="module", params=cases.some(["qwen2_vl", "qwen2_5_vl", "qwen3_vl"], {"qwen2_5_vl", "qwen3_vl"}))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    model, data = tiny_module.make_files(tmp_path_factory.mktemp(request.param), sft=1, train=3, test=1, family=request.param)
    file = model / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(file).items()}, file, metadata={"format": "pt"})
    return World(tiny_module.load(model, data), model)


def types(policy: Policy) -> dict[tuple[str, bool], set[torch.dtype]]:
    """(part, whether it is a norm) -> the types of its parameters."""
    out: dict[tuple[str, bool], set[torch.dtype]] = {}
    for name, p in policy.model.named_parameters():
        norm = any(mark in name for mark in ("norm", "ln_q"))
        out.setdefault((policy.bundle.family.part_of(name), norm), set()).add(p.dtype)
    return out


@pytest.mark.parametrize("trains", [(), TOWER, ("language",), PARTS], ids=["none", "tower", "language", "all"])
def test_what_does_not_train_has_the_compute_type(world: World, trains: tuple[Part, ...]) -> None:
    policy = world.load(trains)
    for (part, norm), found in types(policy).items():
        table = {torch.float32} if part == "vision" and policy.bundle.family.name == "qwen3_vl" and not norm else set()
        assert found - table == {torch.float32 if norm or part in trains else torch.bfloat16} - table, (part, norm)
    assert all(p.requires_grad for n, p in policy.model.named_parameters() if policy.bundle.family.part_of(n) in trains)
    assert {b.dtype for b in policy.model.buffers() if b.is_floating_point()} == {torch.float32}, "rotary frequencies"
    assert type(policy.model) is type(world.tiny.policy.model)


def test_a_frozen_weight_costs_two_bytes(world: World) -> None:
    def held(policy: Policy) -> int:
        return sum({p.data_ptr(): p.nbytes for p in policy.model.parameters()}.values())

    whole, tower, none = held(world.load(PARTS)), held(world.load(("language",))), held(world.load(()))
    assert whole == held(world.tiny.policy)
    assert none < 0.51 * whole
    assert none < tower < whole
    assert held(world.load((), "float32")) == whole


def test_tensors_come_from_the_file_in_the_type_that_they_get(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one and on the device: there is never a float32 copy of what does not train."""
    from transformers import core_model_loading

    asked: list[tuple[object, torch.dtype]] = []
    real = core_model_loading._materialize_copy

    def watched(tensor: torch.Tensor, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        out = real(tensor, device, dtype)
        asked.append((device, out.dtype))
        return out

    monkeypatch.setattr(core_model_loading, "_materialize_copy", watched)
    policy = world.load(("language",))
    assert {str(device) for device, _ in asked} == {"cpu"}
    with safe_open(world.folder / "model.safetensors", "pt") as file:
        assert len(asked) == len(list(file.keys()))
    parameters = list(policy.model.parameters())
    assert sorted(str(t) for _, t in asked) == sorted(str(p.dtype) for p in parameters)


def test_a_file_in_bfloat16_gives_the_same_bits_whether_its_weights_train(world: World) -> None:
    """So the reference of a first update equals the policy, and adapters see the base that float32 masters would show them."""
    masters, kept = world.load(PARTS), world.load(())
    with torch.no_grad():
        assert torch.equal(world.logp(masters), world.logp(kept))
        assert torch.equal(world.logp(world.adapted(trains=PARTS)), world.logp(world.adapted()))
    assert world.rollouts(masters) == world.rollouts(kept)
    assert world.rollouts(world.adapted(trains=PARTS)) == world.rollouts(world.adapted())


def test_gradients_of_what_trains_are_those_over_float32_weights(world: World) -> None:
    grads: list[dict[str, torch.Tensor]] = []
    for trains in ((), PARTS):
        policy = world.adapted(LoraSpec(rank=4, alpha=6.0, vision=True), trains)
        named = freeze(policy, ())
        assert {p.dtype for _, p in named} == {torch.float32}
        world.logp(policy, train=True).sum().backward()
        grads.append({name: p.grad for name, p in named if p.grad is not None})
    assert len(grads[0]) > 20
    assert grads[0].keys() == grads[1].keys()
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])


def test_what_is_kept_in_16_bits_cannot_be_trained(world: World) -> None:
    policy = world.load(("language",))
    freeze(policy, TOWER)
    with pytest.raises(ValueError, match=r"visual.*is to train and is torch\.bfloat16"):
        freeze(policy, ())


def test_an_export_holds_sums_in_float32_and_is_what_the_live_weights_become(world: World, tmp_path: Path) -> None:
    """Adapters are less than what 16 bits can add to a weight. The next stage rounds the sums, as this process does."""
    policy = world.adapted()
    sums = {name: t.clone() for name, t in merged_state(policy).items()}
    export(policy, tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
    opened = load_policy(str(tmp_path / "out"), world.tiny.bundle, device="cpu")
    assert opened.model.config.dtype == torch.float32
    exact = dict(opened.state())
    assert all(torch.equal(exact[name], value.float()) for name, value in sums.items())
    fold_adapters(policy)
    assert weights_fingerprint(policy) == weights_fingerprint(world.load((), folder=tmp_path / "out"))


def test_a_family_without_code_of_its_own(tmp_path: Path) -> None:
    """SmolVLM's class brings features to the type of its first weight, and puts them into the stream as they are then."""
    (tmp_path / "world").mkdir()
    model, data = given.make_model("smolvlm", tmp_path / "model"), given.make_rows(tmp_path / "world", video=False, train=1, test=1)
    file = model / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(file).items()}, file, metadata={"format": "pt"})
    world = World(given.load_given(model, data), model)
    rows = [Row(index=k, group=0, prompt=world.tiny.prompts(1)[0], response=(30, 31 + k, 40)) for k in range(2)]
    found: list[torch.Tensor] = []
    for trains in (PARTS, ("language",), ()):
        policy = world.load(trains)
        assert policy.layouts is not None
        layout = policy.layouts["repeat"]
        batch = layout.pack(rows, policy.positions, policy.device, pad_id=policy.bundle.end_ids[0])
        vision = VisionCache(world.tiny.store, budget_bytes=2**26)
        with torch.no_grad():
            found.append(layout.forward(policy, batch, vision, temperature=1.0, forbidden=(), train=False).logp_BT)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("stages", "lora", "trained"),
    [
        ([{"freeze": ["vision"]}], None, ("projector", "language")),
        ([{"freeze": ["vision", "projector"]}, {"freeze": ["language"]}], None, PARTS),
        ([{"optim": {"parts": {"vision": 0.0}}}], None, ("projector", "language")),
        ([{}], {}, ()),
    ],
)
def test_a_recipe_says_what_trains_in_any_stage(stages: list[dict[str, object]], lora: object, trained: tuple[str, ...]) -> None:
    listed = [{"kind": "sft", "name": f"s{n}", "steps": 1, "source": {"path": "a.jsonl"}, **stage} for n, stage in enumerate(stages)]
    cfg = Config.model_validate({"run": {"name": "x"}, "model": {"path": "m", "lora": lora}, "data": {"root": "d"}, "stages": listed})
    assert cfg.trained == trained
