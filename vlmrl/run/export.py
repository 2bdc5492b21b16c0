"""A stage's weights as a plain transformers folder: opens with `from_pretrained`, no merge step.

Adapters are added to the weights (`policy.lora`); the folder `adapter` in it holds them alone, in peft's format, for the stage's base.
A `manifest.json` lists size and sha256 of every file, so that a later stage, a resumed run or anybody else can tell damage.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from vlmrl import __version__, faults, fs
from vlmrl.errors import StorageError
from vlmrl.policy.load import SETTINGS
from vlmrl.policy.lora import adapter_state, merged_state, save_adapter
from vlmrl.policy.model import Policy
from vlmrl.train import dist
from vlmrl.train.manifest import EXPORTED, damage, seal_of, write_manifest
from vlmrl.train.tensors import require_finite, system_error

ADAPTER_FOLDER = "adapter"


def export(
    policy: Policy,
    path: Path,
    known: str | None = None,
    about: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> str:
    """Write model and processor to `path`, whole or not at all; the digest of its manifest.

    A folder that is already there stays if it has the digest `known` and is as it was written; any other is written again.

    The live policy is left as it is, adapters included. Every rank calls this: weights in shards are gathered, and rank 0 writes.

    Args:
        about: what else the folder's `vlmrl.json` says, as JSON (`run.about`).
        dtype: type of the weights in it.

    Raises:
        NumericsError: a weight is not finite; nothing is written.
        StorageError: the disk refused; nothing is left under the name, and the same command may try again.
    """
    kept = dist.gather(dist.on_main(lambda: known if known is not None and path.exists() and not damage(path, known) else None))[0]
    if kept is not None:  # rank 0 decides: only it knows what the run has made
        return kept
    weights, adapter = merged_state(policy, keep=dist.is_main()), adapter_state(policy)
    seal = dist.gather(dist.on_main(lambda: _write(policy, path, weights, adapter, about or {}, dtype)))[0]
    assert seal is not None
    return seal


def _write(
    policy: Policy,
    path: Path,
    weights: Mapping[str, torch.Tensor],
    adapter: Mapping[str, torch.Tensor],
    about: Mapping[str, Any],
    dtype: torch.dtype,
) -> str:
    require_finite(weights, str(path))
    if path.exists():
        fs.remove_tree(path)
    with _whole(path) as temporary:
        policy.model.save_pretrained(temporary, state_dict=_in_type(weights, dtype))
        _save_config(policy.model.config, temporary, str(dtype).removeprefix("torch."))
        faults.point("export.written")
        policy.bundle.processor.save_pretrained(temporary)
        if policy.lora is not None:
            save_adapter(policy, temporary / ADAPTER_FOLDER, adapter)
        fs.write_text(temporary / SETTINGS, json.dumps({**_settings_of(policy), **about}) + "\n")
        seal = write_manifest(temporary, {"schema": EXPORTED, "kind": "model", "vlmrl": __version__})
    return seal


def _save_config(config: Any, folder: Path, dtype: str) -> None:
    """Write a config that names the type of the weights; what was written is the type of the first tensor in the live model."""
    inner = [getattr(config, name, None) for name in config.sub_configs] if dtype != "float32" else []
    parts = [config, *(part for part in inner if part is not None)]
    live = [part.dtype for part in parts]
    for part in parts:
        part.dtype = dtype
    config.save_pretrained(folder)
    for part, before in zip(parts, live, strict=True):
        part.dtype = before


def _in_type(weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of floating point in one type, whatever of the model has trained. Tied ones stay one tensor."""
    typed = {id(t): t.to(dtype) if t.is_floating_point() and t.element_size() <= 4 else t for t in weights.values()}
    return {name: typed[id(t)] for name, t in weights.items()}


def link(source: Path, path: Path) -> None:
    """The same folder under a second name, without a second copy of the weights where the file system has links.

    Raises:
        StorageError: the disk refused.
    """
    if path.exists():
        if not damage(path, seal_of(source)):
            return
        fs.remove_tree(path)
    with _whole(path) as temporary:
        try:
            shutil.copytree(source, temporary, copy_function=os.link)
        except (OSError, shutil.Error):
            fs.remove_tree(temporary)
            shutil.copytree(source, temporary)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A temporary folder that gets the name `path`, durably, when the block ends well, and is removed when it does not.

    Raises:
        StorageError: what the libraries say of a disk that refuses, in one form.
    """
    fs.mkdir(path.parent)
    temporary = path.parent / fs.temporary_name(path.name)
    try:
        yield temporary
        _commit(temporary, path)
    except BaseException as error:
        fs.remove_tree(temporary)
        cause = system_error(error) if isinstance(error, SafetensorError) else error
        if isinstance(cause, OSError):  # shutil.Error is one
            why = f"{cause.strerror or cause}; free some space or check the disk, and run the same command again"
            raise StorageError(f"{path}: not exported: {why}") from error
        raise


def _commit(temporary: Path, path: Path) -> None:
    for file in sorted(temporary.rglob("*")):
        if file.is_file():
            fs.sync(file)
        else:
            fs.fsync_dir(file)
    fs.fsync_dir(temporary)
    fs.rename(temporary, path)
    fs.fsync_dir(path.parent)


def _settings_of(policy: Policy) -> dict[str, str]:
    """What an exported folder says of how the model was run."""
    family = policy.bundle.family
    quantized = {} if policy.quantized == "none" else {"quantize": policy.quantized}
    return {"positions": policy.positions.rule} | ({} if family.own_code else {"family": family.choice}) | quantized
