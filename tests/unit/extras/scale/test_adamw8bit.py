"""AdamW with moments of 8 bits: near to the plain one, saved and restored bit for bit, watched for what is not finite."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support import runs
from vlmrl.config.schema import Config, validate
from vlmrl.config.section import OptimSection
from vlmrl.errors import CheckpointError, ConfigError, NumericsError
from vlmrl.extras.scale import adamw8bit
from vlmrl.train import dist
from vlmrl.train.adamw import make_optimizer
from vlmrl.train.replicas import MOMENTS, ReplicaUpdates
from vlmrl.train.tensors import load_optimizer, optimizer_tensors

pytest.importorskip("bitsandbytes")
SIZES = {"model.a.weight": (96, 64), "model.b.weight": (70, 61), "model.c.weight": (8, 8), "model.d.bias": (5000,), "model.e.bias": (3,)}
LARGE = {"model.a.weight", "model.b.weight", "model.d.bias"}


def parameters() -> list[tuple[str, torch.nn.Parameter]]:
    draws = torch.Generator().manual_seed(0)
    return [(name, torch.nn.Parameter(torch.randn(size, generator=draws))) for name, size in SIZES.items()]


def updates(kind: str = "adamw8bit", **fields: Any) -> tuple[ReplicaUpdates, list[tuple[str, torch.nn.Parameter]]]:
    named = parameters()
    cfg = OptimSection.model_validate({"kind": kind, "lr": 1e-2, "weight_decay": 0.1, **fields})
    return ReplicaUpdates(named, *make_optimizer(named, cfg)), named


def train(of: ReplicaUpdates, named: list[tuple[str, torch.nn.Parameter]], steps: range) -> None:
    for step in steps:
        draws = torch.Generator().manual_seed(100 + step)
        for name, p in named:
            p.grad = None if name == "model.e.bias" else torch.randn(p.shape, generator=draws) * 0.1 + 0.05
        of.apply()
        of.zero()


def test_it_follows_the_plain_one() -> None:
    """Tensors below 4096 numbers to rounding, larger ones to what 8 bits hold of their moments."""
    moved: dict[str, list[torch.Tensor]] = {}
    for kind in ("adamw", "adamw8bit"):
        of, named = updates(kind)
        before = {name: p.detach().clone() for name, p in named}
        train(of, named, range(12))
        for name, p in named:
            moved.setdefault(name, []).append(p.detach() - before[name])
    for name, (plain, eight) in moved.items():
        gap = float((plain - eight).norm() / plain.norm().clamp(min=1e-9))
        if name == "model.e.bias":
            assert plain.abs().max() == 0
            assert eight.abs().max() == 0
        elif name in LARGE:
            assert 1e-4 < gap < 0.1, (name, gap)
        else:
            assert gap < 1e-4, (name, gap)


def test_two_bytes_for_each_number_of_a_large_tensor() -> None:
    of, named = updates()
    train(of, named, range(1))
    tensors, _ = optimizer_tensors(of.optimizer, [n for group in ("weight", "bias") for n in SIZES if n.endswith(group)])
    for name, p in named:
        own = {key.split("/")[0]: value for key, value in tensors.items() if key.endswith(f"/{name}")}
        if name == "model.e.bias":
            assert own == {}, "it never had a gradient"
            continue
        assert set(own) == adamw8bit.Blocks().needed(p)
        assert own["state1"].dtype == (torch.uint8 if name in LARGE else torch.float32)
        scales = sum(own[kind].nbytes for kind in ("absmax1", "absmax2") if kind in own)
        assert own["state1"].nbytes + own["state2"].nbytes + scales == moment_bytes(p.numel())


def moment_bytes(numbers: int) -> int:
    return 8 * numbers if numbers < 4096 else 2 * numbers + 8 * -(-numbers // 256)


@pytest.mark.parametrize("stop", [0, 1, 4])
def test_what_was_saved_goes_on_with_the_same_bits(stop: int, tmp_path: Path) -> None:
    whole, expected = updates()
    train(whole, expected, range(8))
    first, named = updates()
    train(first, named, range(stop))
    (tmp_path / "saved").mkdir()
    first.writer(copy=None)(tmp_path / "saved", dist)
    second, other = updates()
    for _, p in other:
        p.data.zero_()
    second.start(tmp_path / "saved")
    train(second, other, range(stop, 8))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(expected, other, strict=True))
    (tmp_path / "again").mkdir()
    (tmp_path / "end").mkdir()
    second.writer(copy=None)(tmp_path / "again", dist)
    whole.writer(copy=None)(tmp_path / "end", dist)
    a, b = (load_file(tmp_path / name / MOMENTS) for name in ("again", "end"))
    assert set(a) == set(b)
    assert all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


def test_a_checkpoint_that_does_not_fit_is_named() -> None:
    of, named = updates()
    train(of, named, range(2))
    order = [n for group in ("weight", "bias") for n in SIZES if n.endswith(group)]
    tensors, state = optimizer_tensors(of.optimizer, order)
    state = json.loads(json.dumps(state))
    name = "model.a.weight"
    for wrong, said in (
        ({**tensors, f"state1/{name}": tensors[f"state1/{name}"].float()}, "is torch.float32, the parameter is torch.uint8"),
        ({**tensors, f"absmax1/{name}": torch.zeros(3)}, r"has shape \(3,\), the parameter needs \(24,\)"),
        ({key: value for key, value in tensors.items() if key != f"absmax2/{name}"}, f"missing tensor 'absmax2/{name}'"),
        ({**tensors, f"exp_avg/{name}": torch.zeros(96, 64)}, f"unexpected tensor 'exp_avg/{name}'"),
    ):
        fresh, _ = updates()
        with pytest.raises(CheckpointError, match=said):
            load_optimizer(fresh.optimizer, order, wrong, state)
    plain, _ = updates("adamw")
    with pytest.raises(CheckpointError, match="unexpected tensor 'absmax1/"):
        load_optimizer(plain.optimizer, order, tensors, state)


@pytest.mark.parametrize(("kind", "name"), [("absmax1", "model.a.weight"), ("state2", "model.c.weight")])
def test_moments_that_are_not_finite_are_not_saved(kind: str, name: str) -> None:
    of, named = updates()
    train(of, named, range(2))
    of.require_finite("step-2")
    dict_of = of.optimizer.state[dict(named)[name]]
    dict_of[kind].view(-1)[0] = float("nan")
    with pytest.raises(NumericsError, match=f"{kind}/{name}"):
        of.require_finite("step-2")


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError("No module named 'bitsandbytes'")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'vlmrl\[bitsandbytes\]', or take adamw"):
        updates()


@pytest.mark.parametrize("sharding", ["fsdp", "zero2", "zero3"])
def test_engines_with_shards_refuse_it(sharding: str) -> None:
    raw = runs.small_config(Path("model"), Path("world"), Path("runs"))
    raw["stages"][1]["optim"] = {"kind": "adamw8bit"}
    assert validate(Config.model_validate(raw)) == []
    raw["train"] = {"sharding": sharding}
    (problem,) = validate(Config.model_validate(raw))
    assert problem.startswith("stages[1] (rl): optim.kind 'adamw8bit' needs whole weights on every rank")
    assert f"not '{sharding}'" in problem
