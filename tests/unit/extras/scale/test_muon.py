"""Muon for matrices inside the model and AdamW for the rest: torch's own steps, saved and restored bit for bit, refused elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import runs
from vlmrl.config.schema import Config, validate
from vlmrl.config.section import OptimSection
from vlmrl.errors import CheckpointError, ConfigError
from vlmrl.extras.scale import muon
from vlmrl.train.adamw import make_optimizer, occupied
from vlmrl.train.tensors import load_optimizer, optimizer_tensors

SIZES = {
    "model.language_model.layers.0.mlp.up_proj.weight": (24, 16),
    "model.visual.blocks.0.attn.qkv.weight": (12, 20),
    "model.language_model.embed_tokens.weight": (40, 16),
    "lm_head.weight": (40, 16),
    "model.visual.patch_embed.proj.weight": (8, 3, 2, 4, 4),
    "model.language_model.layers.0.mlp.gate.weight": (1, 16),
    "model.language_model.norm.weight": (16,),
}
MATRICES = tuple(SIZES)[:2]


def made(**fields: Any) -> tuple[Any, list[str], dict[str, torch.nn.Parameter]]:
    draws = torch.Generator().manual_seed(0)
    named = {name: torch.nn.Parameter(torch.randn(size, generator=draws)) for name, size in SIZES.items()}
    cfg = OptimSection.model_validate({"kind": "muon", "lr": 1e-2, "weight_decay": 0.1, **fields})
    return *make_optimizer(list(named.items()), cfg), named


def train(optimizer: Any, named: dict[str, torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        draws = torch.Generator().manual_seed(100 + step)
        for p in named.values():
            p.grad = torch.randn(p.shape, generator=draws)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_each_weight_has_the_step_of_torchs_own_optimizer() -> None:
    optimizer, order, named = made()
    assert sorted(order) == sorted(SIZES)
    mine = {id(p) for group in optimizer.param_groups if muon.is_muon(group) for p in group["params"]}
    assert {name for name, p in named.items() if id(p) in mine} == set(MATRICES)
    train(optimizer, named, range(3))

    _, _, plain = made()
    wide = {name: p for name, p in plain.items() if name in MATRICES}
    flat = [p for name, p in plain.items() if name not in MATRICES and p.ndim >= 2]
    thin = [p for p in plain.values() if p.ndim < 2]
    theirs = torch.optim.Muon(list(wide.values()), lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW([{"params": flat, "weight_decay": 0.1}, {"params": thin, "weight_decay": 0.0}], lr=1e-2)
    for step in range(3):
        draws = torch.Generator().manual_seed(100 + step)
        for p in plain.values():
            p.grad = torch.randn(p.shape, generator=draws)
        for group in theirs.param_groups + adam.param_groups:
            group["lr"] = 1e-2 / (1 + step)
        theirs.step()
        adam.step()
    for name, p in plain.items():
        assert torch.equal(p, named[name]), name


def test_a_step_is_as_large_as_one_of_adamw() -> None:
    optimizer, _, named = made(weight_decay=0.0)
    before = {name: p.detach().clone() for name, p in named.items()}
    train(optimizer, named, range(1))
    for name in MATRICES:
        rms = (named[name] - before[name]).square().mean().sqrt().item()
        assert 0.1 < rms / 1e-2 < 0.4, (name, rms)


def test_resumed_training_has_the_same_bits() -> None:
    whole, order, expected = made()
    train(whole, expected, range(2))
    tensors, groups = optimizer_tensors(whole, order)
    tensors = {key: value.clone() for key, value in tensors.items()}
    kept = {name: p.detach().clone() for name, p in expected.items()}
    train(whole, expected, range(2, 5))

    again, order, named = made()
    with torch.no_grad():
        for name, p in named.items():
            p.copy_(kept[name])
    load_optimizer(again, order, tensors, groups)
    train(again, named, range(2, 5))
    for name, p in named.items():
        assert torch.equal(p, expected[name]), name
    assert {key.split("/")[0] for key in tensors if key.endswith("up_proj.weight")} == {"momentum_buffer"}
    assert {key.split("/")[0] for key in tensors if key.endswith("lm_head.weight")} == {"step", "exp_avg", "exp_avg_sq"}


def test_moments_of_another_kind_are_refused() -> None:
    optimizer, order, named = made()
    train(optimizer, named, range(1))
    tensors, groups = optimizer_tensors(optimizer, order)
    name = MATRICES[0]
    swapped = {key: value for key, value in tensors.items() if not key.endswith(name)} | {f"exp_avg/{name}": torch.zeros(24, 16)}
    with pytest.raises(CheckpointError, match=f"unexpected tensor 'exp_avg/{name}'"):
        load_optimizer(optimizer, order, swapped, groups)
    with pytest.raises(CheckpointError, match=r"unexpected tensor 'momentum_buffer/lm_head\.weight'"):
        load_optimizer(optimizer, order, tensors | {"momentum_buffer/lm_head.weight": torch.zeros(40, 16)}, groups)
    other, names, _ = made(kind="adamw")
    with pytest.raises(CheckpointError):
        load_optimizer(other, names, tensors, groups)


def test_adapters_alone_have_nothing_for_it() -> None:
    lora = [("model.layers.0.q_proj.lora_A.default.weight", torch.nn.Parameter(torch.zeros(4, 8)))]
    with pytest.raises(ConfigError, match="adapters are none"):
        make_optimizer(lora, OptimSection(kind="muon"))


@pytest.mark.parametrize("sharding", ["fsdp", "zero2", "zero3"])
def test_shards_refuse_it(sharding: str) -> None:
    raw = runs.small_config(Path("model"), Path("world"), Path("runs"))
    raw["stages"][1]["optim"] = {"kind": "muon"}
    assert validate(Config.model_validate(raw)) == []
    raw["train"] = {"sharding": sharding}
    (problem,) = validate(Config.model_validate(raw))
    assert problem.startswith("stages[1] (rl): optim.kind 'muon' needs whole weights on every rank")


def test_rehearsals_leave_nothing_behind() -> None:
    optimizer, _, named = made()
    with occupied(optimizer):
        assert all(p.grad is not None for p in named.values())
    assert all(p.grad is None for p in named.values())
    assert not optimizer.state
