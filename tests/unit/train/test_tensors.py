"""train.tensors: safetensors only, and AdamW's memory by name."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import fs_ops
from vlmrl.errors import CheckpointError, StorageError
from vlmrl.train.tensors import load_optimizer, optimizer_tensors, read_tensors, write_tensors

NAMES = ["b.weight", "b.bias", "a.weight"]


def make(seed: int = 0) -> tuple[list[torch.nn.Parameter], torch.optim.AdamW]:
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 2), (3,), (2, 2))]
    groups = [{"params": [parameters[0], parameters[2]], "weight_decay": 0.1}, {"params": [parameters[1]], "weight_decay": 0.0, "lr": 0.03}]
    return parameters, torch.optim.AdamW(groups, lr=0.02, betas=(0.8, 0.95))


ORDER = ["b.weight", "a.weight", "b.bias"]


def train(parameters: list[torch.nn.Parameter], opt: torch.optim.AdamW, steps: range, skip: int | None = None) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for i, p in enumerate(parameters):
            p.grad = None if i == skip else torch.randn(p.shape, generator=generator)
        opt.step()


def through_disk(folder: Path, opt: torch.optim.AdamW) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors, state = optimizer_tensors(opt, ORDER)
    write_tensors(folder / "optimizer.safetensors", tensors)
    return read_tensors(folder / "optimizer.safetensors"), json.loads(json.dumps(state))


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {
        "a": torch.tensor([float("nan"), -0.0, 1e-45]),
        "b": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).t(),
        "c": torch.arange(4, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(7),
    }
    write_tensors(tmp_path / "t.safetensors", tensors)
    back = read_tensors(tmp_path / "t.safetensors")
    assert set(back) == set(tensors)
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype
        assert back[name].shape == value.shape
        assert (
            back[name]
            .contiguous()
            .view(torch.uint8 if value.dim() else value.dtype)
            .equal(value.contiguous().view(torch.uint8 if value.dim() else value.dtype))
        )
    assert [p.name for p in tmp_path.iterdir()] == ["t.safetensors"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "t.safetensors"
    write_tensors(file, {"a": torch.zeros(2)})
    old = file.read_bytes()
    for n in (1, 2, 3, 4):
        with fs_ops.fail_at(n), pytest.raises(StorageError):
            write_tensors(file, {"a": torch.ones(200)})
        assert file.read_bytes() == old
        assert [p.name for p in tmp_path.iterdir()] == [file.name]


def test_a_system_error_inside_safetensors_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        write_tensors(tmp_path / "nowhere" / "t.safetensors", {"a": torch.zeros(2)})


class Payload:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def header(table: Any, length: int | None = None) -> bytes:
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        header({}, length=2**62),
        header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
        header({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}) + b"\0" * 64,
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})
        + b"\0" * 12,
    ],
)
def test_malformed_files_are_clean_errors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        read_tensors(tmp_path / "t.safetensors")


def test_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(pickle.dumps(Payload(tmp_path / "dropped")))
    torch.save({"a": torch.zeros(1)}, tmp_path / "u.safetensors")
    for name in ("t.safetensors", "u.safetensors", "absent"):
        with pytest.raises(CheckpointError):
            read_tensors(tmp_path / name)
    assert not (tmp_path / "dropped").exists()


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    parameters, opt = make()
    train(parameters, opt, range(5))
    tensors, state = through_disk(tmp_path, opt)
    resumed, fresh = make(seed=1)
    for p, q in zip(resumed, parameters, strict=True):
        p.data.copy_(q.data)
    fresh.param_groups[0]["lr"] = 99.0
    load_optimizer(fresh, ORDER, tensors, state)
    assert fresh.param_groups[0]["lr"] == 0.02
    assert fresh.param_groups[0]["betas"] == (0.8, 0.95)
    assert fresh.param_groups[1]["lr"] == 0.03
    train(parameters, opt, range(5, 9))
    train(resumed, fresh, range(5, 9))
    for p, q in zip(resumed, parameters, strict=True):
        assert p.equal(q)
    again, _ = optimizer_tensors(fresh, ORDER)
    for key, value in optimizer_tensors(opt, ORDER)[0].items():
        assert again[key].equal(value)
        assert again[key].dtype == value.dtype


def test_names_of_tensors() -> None:
    parameters, opt = make()
    train(parameters, opt, range(1))
    tensors, state = optimizer_tensors(opt, ORDER)
    assert sorted(tensors) == sorted(f"{kind}/{name}" for kind in ("step", "exp_avg", "exp_avg_sq") for name in NAMES)
    assert [group["params"] for group in state["groups"]] == [["b.weight", "a.weight"], ["b.bias"]]
    # The gradient of the first step enters exp_avg with weight 1 - beta1 = 0.2.
    grad = parameters[1].grad
    assert grad is not None
    torch.testing.assert_close(tensors["exp_avg/b.bias"], 0.2 * grad)
    assert tensors["step/b.bias"].item() == 1


@pytest.mark.parametrize("skip", [None, 0, 2])
def test_parameters_without_gradient_have_no_state(tmp_path: Path, skip: int | None) -> None:
    parameters, opt = make()
    train(parameters, opt, range(0 if skip is None else 2), skip=skip)
    tensors, state = through_disk(tmp_path, opt)
    assert len(tensors) == (0 if skip is None else 6)
    _, fresh = make()
    load_optimizer(fresh, ORDER, tensors, state)
    assert sorted(optimizer_tensors(fresh, ORDER)[0]) == sorted(tensors)


def spoil(kind: str, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    if kind == "missing tensor":
        del tensors["exp_avg/a.weight"]
    elif kind == "unexpected tensor":
        tensors["exp_avg/c.weight"] = torch.zeros(1)
    elif kind == "unexpected kind":
        tensors["momentum/a.weight"] = torch.zeros(2, 2)
    elif kind == "shape":
        tensors["exp_avg/a.weight"] = torch.zeros(4)
    elif kind == "dtype":
        tensors["exp_avg_sq/a.weight"] = torch.zeros(2, 2, dtype=torch.bfloat16)
    elif kind == "parameter":
        state["groups"][0]["params"][0] = "z.weight"
    elif kind == "moved":
        state["groups"][1]["params"].append(state["groups"][0]["params"].pop())
    elif kind == "order":
        state["groups"][0]["params"].reverse()
    elif kind == "groups":
        state["groups"].pop()
    elif kind == "option":
        del state["groups"][0]["eps"]
    elif kind == "key":
        state["extra"] = 1


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing tensor", "missing tensor 'exp_avg/a.weight'"),
        ("unexpected tensor", "unexpected tensor 'exp_avg/c.weight'"),
        ("unexpected kind", "unexpected tensor 'momentum/a.weight'"),
        ("shape", r"'exp_avg/a.weight' has shape \(4,\), the parameter needs \(2, 2\)"),
        ("dtype", "'exp_avg_sq/a.weight' is torch.bfloat16"),
        ("parameter", "group 0: parameter 'b.weight' is not in the checkpoint"),
        ("moved", "group 1: parameter 'a.weight' is not in the optimizer"),
        ("order", "the same parameters in another order"),
        ("groups", "1 parameter groups in the checkpoint, 2 in the optimizer"),
        ("option", "group 0: option 'eps' only on one side"),
        ("key", "expected the key 'groups'"),
    ],
)
def test_every_mismatch_is_named_and_changes_nothing(kind: str, message: str) -> None:
    parameters, opt = make()
    train(parameters, opt, range(2))
    tensors, state = optimizer_tensors(opt, ORDER)
    tensors, state = {k: v.clone() for k, v in tensors.items()}, json.loads(json.dumps(state))
    spoil(kind, tensors, state)
    _, fresh = make()
    with pytest.raises(CheckpointError, match=message):
        load_optimizer(fresh, ORDER, tensors, state)
    assert not fresh.state


@pytest.mark.parametrize("names", [["a"], ["a", "a", "b"]])
def test_names_must_fit_the_parameters(names: list[str]) -> None:
    with pytest.raises(ValueError, match="for 3 parameters"):
        optimizer_tensors(make()[1], names)


def test_other_optimizers_are_refused() -> None:
    parameters, _ = make()
    opt = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    train(parameters, opt, range(1))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="only Adam, AdamW and Muon"):
        optimizer_tensors(opt, NAMES)
