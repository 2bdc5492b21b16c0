"""Tensors of a checkpoint: safetensors files, and AdamW's memory by parameter name, never by position and never as a pickle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vlmrl import fs
from vlmrl.errors import CheckpointError, NumericsError

NAMED = 5
"""Tensors that a message names."""


class Moments:
    """The moments that Adam and AdamW keep of a parameter, on the device and in a checkpoint. An optimizer that keeps others holds an
    object of a subclass as its `moments`."""

    def kinds(self, parameter: torch.Tensor) -> tuple[str, ...]:
        """Name the kinds of tensors that a parameter may have."""
        del parameter
        return ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def needed(self, parameter: torch.Tensor) -> set[str]:
        """Name the kinds that a parameter has once it has been updated."""
        del parameter
        return {"step", "exp_avg", "exp_avg_sq"}

    def expected(self, kind: str, parameter: torch.Tensor, value: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
        """Give the shape and type that a saved tensor must have; `value` is what was saved."""
        return ((), value.dtype) if kind == "step" else (tuple(parameter.shape), parameter.dtype)

    def saved(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Choose what of a parameter's state belongs into a checkpoint, as tensors."""
        return state

    def restored(self, opt: Any, state: dict[str, torch.Tensor], device: torch.device) -> dict[str, Any]:
        """Make the state of a parameter from what `saved` gave."""
        del opt, device
        return state

    def room(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        """Take as much memory as the moments of a parameter take, without values."""
        return [torch.empty_like(parameter) for _ in range(2)]


ADAM = Moments()


def moments_of(opt: Any) -> Moments:
    """Find the kind of moments that an optimizer keeps."""
    return getattr(opt, "moments", ADAM)


def not_finite(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Name the floating-point tensors that hold a NaN or an infinity. Reads each once, copies nothing and waits for the device once."""
    floats = {name: t.detach() for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    ends: dict[torch.device, list[torch.Tensor]] = {}
    names: dict[torch.device, list[str]] = {}
    for name, t in floats.items():
        low, high = torch.aminmax(t)  # both are NaN where there is one
        ends.setdefault(t.device, []).append(torch.stack([low, high]).double())
        names.setdefault(t.device, []).append(name)
    # [tensors, 2] of each device, brought to the host together
    found = {device: torch.stack(pairs).isfinite().all(dim=1).tolist() for device, pairs in ends.items()}
    return [name for device, of in names.items() for name, fine in zip(of, found[device], strict=True) if not fine]


def require_finite(tensors: Mapping[str, torch.Tensor], what: str) -> None:
    """Refuse tensors that are not finite, before anything is written: what is saved is what a run goes on from.

    Raises:
        NumericsError: a tensor holds a NaN or an infinity; names some of them.
    """
    bad = not_finite(tensors)
    if bad:
        raise NumericsError(f"{what}: not saved, {listed(bad, len(tensors))}")


def listed(bad: Sequence[str], of: int) -> str:
    """Write `2 of 81 tensors are not finite: a, b`."""
    more = "" if len(bad) <= NAMED else ", ..."
    return f"{len(bad)} of {of} tensors are not finite: {', '.join(bad[:NAMED])}{more}"


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file, durably. Tensors may be on any device; those that share memory are an error (RuntimeError).

    Raises:
        StorageError: the disk refused.
    """

    def write(temporary: Path) -> None:
        try:
            save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, temporary)
        except SafetensorError as error:
            cause = system_error(error)
            if cause is None:
                raise
            raise cause from error

    fs.write_with(path, write)


def system_error(error: SafetensorError) -> OSError | None:
    """Find the system's error (a full disk, for example) inside one of safetensors, which tells it by its text only; None without one."""
    code = re.search(r"os error (\d+)", str(error))
    return None if code is None else OSError(int(code[1]), str(error))


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file. Nothing but safetensors is read: a pickle is refused, not run.

    Returns:
        Tensors by name, on the CPU.

    Raises:
        CheckpointError: missing, or not a well-formed safetensors file.
    """
    try:
        return load_file(path, device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from error


def optimizer_tensors(opt: torch.optim.Optimizer, names: Sequence[str]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Take the state of an Adam or AdamW apart into tensors and JSON values.

    Args:
        opt: the bare optimizer, not accelerate's wrapper.
        names: one per parameter, in the order of the parameters in `opt.param_groups`.

    Tensors are called `<kind>/<parameter name>` with kind `step`, `exp_avg`, `exp_avg_sq` or `max_exp_avg_sq`, or those of the optimizer's
    own `Moments`. A parameter that never had a gradient has none. The JSON part holds the parameter groups with names in place of
    parameters.

    Returns:
        (tensors, json). The tensors are the live ones, so write them before the next optimizer step.
    """
    parameters = _named(opt, names)
    tensors: dict[str, torch.Tensor] = {}
    moments = moments_of(opt)
    for name, parameter in parameters.items():
        for kind, value in moments.saved(opt.state.get(parameter, {})).items():
            if kind not in moments.kinds(parameter) or not isinstance(value, torch.Tensor):
                raise TypeError(f"optimizer state '{kind}' of {name}: only Adam, AdamW and Muon can be saved")
            tensors[f"{kind}/{name}"] = value
    of = {id(p): name for name, p in parameters.items()}
    groups = [{**_plain(group), "params": [of[id(p)] for p in group["params"]]} for group in opt.param_groups]
    return tensors, {"groups": groups}


def load_optimizer(opt: torch.optim.Optimizer, names: Sequence[str], tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Put back what `optimizer_tensors` gave, hyperparameters of the groups included; on any mismatch nothing is changed.

    Raises:
        CheckpointError: parameters, groups, tensor names or shapes differ; all differences are listed.
    """
    parameters = _named(opt, names)
    moments = moments_of(opt)
    problems = _group_problems(opt, parameters, state) + _tensor_problems(parameters, tensors, moments)
    if problems:
        raise CheckpointError("the checkpoint's optimizer state does not fit:\n  " + "\n  ".join(problems))
    # torch knows parameters by their number in the groups, a checkpoint by their names
    number = {name: i for i, name in enumerate(parameters)}
    loaded: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        # a copy: torch keeps the tensor itself where type and device fit, and it belongs to the caller
        loaded.setdefault(number[name], {})[kind] = value.clone()
    devices = [parameter.device for parameter in parameters.values()]
    loaded = {i: moments.restored(opt, of, devices[i]) for i, of in loaded.items()}
    groups = [
        {**{k: _like(v, now[k]) for k, v in saved.items() if k != "params"}, "params": [number[name] for name in saved["params"]]}
        for saved, now in zip(state["groups"], opt.param_groups, strict=True)
    ]
    opt.load_state_dict({"state": loaded, "param_groups": groups})


def _named(opt: torch.optim.Optimizer, names: Sequence[str]) -> dict[str, torch.Tensor]:
    parameters = [p for group in opt.param_groups for p in group["params"]]
    if len(names) != len(parameters) or len(set(names)) != len(names):
        raise ValueError(f"{len(names)} names ({len(set(names))} different) for {len(parameters)} parameters of the optimizer")
    return dict(zip(names, parameters, strict=True))


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters as JSON: tuples become lists. A tensor (a capturable learning rate) is refused, not guessed at."""
    out: dict[str, Any] = {}
    for key, value in group.items():
        if key == "params":
            continue
        if isinstance(value, torch.Tensor):
            raise TypeError(f"optimizer option '{key}' is a tensor: only plain numbers can be saved")
        out[key] = list(value) if isinstance(value, tuple) else value
    return out


def _like(saved: Any, now: Any) -> Any:
    return tuple(saved) if isinstance(now, tuple) else saved  # JSON has no tuples, and betas are one


def _group_problems(opt: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> list[str]:
    if set(state) != {"groups"}:
        return [f"expected the key 'groups', got {sorted(state)}"]
    if len(state["groups"]) != len(opt.param_groups):
        return [f"{len(state['groups'])} parameter groups in the checkpoint, {len(opt.param_groups)} in the optimizer"]
    of = {id(p): name for name, p in parameters.items()}
    problems: list[str] = []
    for i, (saved, now) in enumerate(zip(state["groups"], opt.param_groups, strict=True)):
        problems += [f"group {i}: option '{key}' only on one side" for key in sorted(set(saved) ^ set(now))]
        here = [of[id(p)] for p in now["params"]]
        there = saved.get("params", [])
        problems += [f"group {i}: parameter '{name}' is not in the checkpoint" for name in here if name not in there]
        problems += [f"group {i}: parameter '{name}' is not in the optimizer" for name in there if name not in here]
        if sorted(here) == sorted(there) and here != there:
            problems.append(f"group {i}: the same parameters in another order")
    return problems


def _tensor_problems(parameters: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], moments: Moments) -> list[str]:
    problems: list[str] = []
    kinds: dict[str, set[str]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if name not in parameters or kind not in moments.kinds(parameters[name]):
            problems.append(f"unexpected tensor '{key}'")
            continue
        kinds.setdefault(name, set()).add(kind)
        shape, dtype = moments.expected(kind, parameters[name], value)
        if tuple(value.shape) != shape:
            problems.append(f"tensor '{key}' has shape {tuple(value.shape)}, the parameter needs {shape}")
        elif value.dtype != dtype:
            problems.append(f"tensor '{key}' is {value.dtype}, the parameter is {dtype}")
    for name, found in kinds.items():
        problems += [f"missing tensor '{kind}/{name}'" for kind in sorted(moments.needed(parameters[name]) - found)]
    return problems
