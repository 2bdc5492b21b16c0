"""Shards in a checkpoint: every rank writes and hashes its own safetensors, through torch's distributed checkpoints.

Files are `shards/shard-0000R-model-....safetensors`. The header of each says which slices of which tensors it holds, so another number
of ranks reads the same weights and moments. Nothing is pickled. Tensors are called `weight/<name>`, `exp_avg/<name>`, `exp_avg_sq/<name>`
and `step/<name>`; `optimizer.json` holds the parameter groups, as without shards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vlmrl import fs
from vlmrl.errors import CheckpointError, StorageError
from vlmrl.train import dist
from vlmrl.train.manifest import listing
from vlmrl.train.replicas import GROUPS, require_same_names
from vlmrl.train.tensors import optimizer_tensors
from vlmrl.train.updates import JobRanks

FOLDER = "shards"
WEIGHT = "weight/"
Parameters = Mapping[str, torch.nn.Parameter]


def of(named: Parameters, optimizer: torch.optim.Optimizer, order: Sequence[str]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Name live weights and moments as a checkpoint does.

    Returns:
        (tensors by name, the parameter groups as JSON values).
    """
    moments, groups = optimizer_tensors(optimizer, order)
    return {WEIGHT + name: parameter.detach() for name, parameter in named.items()} | moments, groups


def save(folder: Path, ranks: JobRanks, *, tensors: Mapping[str, torch.Tensor], groups: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Write the shards of all ranks below `folder`. Returns what the manifest says of these files: path -> path, size and sha256.

    Raises:
        StorageError: a disk refused, here or on another rank.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    ranks.on_main(lambda: fs.mkdir(folder / FOLDER))
    try:
        with ranks.collective("checkpoint"):
            dcp.save(  # pyright: ignore[reportPrivateImportUsage]
                dict(tensors),
                storage_writer=HuggingFaceStorageWriter(str(folder / FOLDER), save_distributed=True),
                process_group=ranks.control(),
            )
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise StorageError(f"{folder / FOLDER}: rank {rank}: not saved: {cause}; free some space or check the disk") from error
    ranks.on_main(lambda: fs.write_text(folder / GROUPS, json.dumps(groups, sort_keys=True)))
    own = f"shard-{dist.rank() + 1:05d}-"
    mine = ranks.run_synchronized(lambda: listing(folder / FOLDER, only=lambda name: name.startswith(own)))
    entries = [{**entry, "path": f"{FOLDER}/{entry['path']}"} for of_rank in ranks.gather(mine) for entry in of_rank]
    return {entry["path"]: entry for entry in entries}


def restore(path: Path, named: Parameters, optimizer: torch.optim.Optimizer, order: Sequence[str]) -> None:
    """Read weights and moments into their places, whatever the number of ranks that wrote them.

    Raises:
        CheckpointError: the weights are not those that this stage trains.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(path / FOLDER))
    saved = {name: tuple(of.size) for name, of in reader.read_metadata().state_dict_metadata.items()}  # pyright: ignore[reportAttributeAccessIssue]
    require_same_names(path, (name.removeprefix(WEIGHT) for name in saved if name.startswith(WEIGHT)), named)
    _require_same_groups(path, optimizer, order)
    target: dict[str, torch.Tensor] = {}
    state: dict[str, dict[str, torch.Tensor]] = {}
    for key, size in saved.items():
        kind, _, name = key.partition("/")
        parameter = named[name]
        if kind + "/" == WEIGHT:
            target[key] = parameter.detach()
        else:
            target[key] = torch.zeros(()) if kind == "step" else torch.zeros_like(parameter)
            state.setdefault(name, {})[kind] = target[key]
        if tuple(target[key].shape) != size:
            raise CheckpointError(f"{path}: tensor '{key}' has shape {size}, the parameter needs {tuple(target[key].shape)}")
    with dist.collective("checkpoint"):
        dcp.load(target, storage_reader=reader, process_group=dist.control())  # pyright: ignore[reportPrivateImportUsage]
    for name, of in state.items():
        optimizer.state[named[name]] = of


def _require_same_groups(path: Path, optimizer: torch.optim.Optimizer, order: Sequence[str]) -> None:
    saved = json.loads((path / GROUPS).read_text(encoding="utf-8"))["groups"]
    names = iter(order)
    now = [[next(names) for _ in group["params"]] for group in optimizer.param_groups]
    if [group["params"] for group in saved] != now:
        raise CheckpointError(f"{path}: its parameter groups are not those of this stage (optim.weight_decay or the model changed)")
