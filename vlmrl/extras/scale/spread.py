"""Weights that rank 0 alone has read, given to the other ranks unit by unit.

A rank that has read nothing holds a model on the meta device: names, shapes and no memory. Before a unit is cut into shards, its
parameters and buffers get memory on the device and rank 0's values; afterwards only the shards stay. So beside its shards a rank never
holds more than one unit, and what rank 0 has read is given back unit by unit.
"""

from __future__ import annotations

import torch
import torch.distributed as torch_dist
from torch.distributed.tensor import DTensor

from vlmrl.train import dist


@torch.no_grad()
def fill(unit: torch.nn.Module, device: torch.device) -> None:
    """Give rank 0's values to what no unit inside this one has taken yet. Every rank calls it for the same units in the same order.

    Tied parameters are one tensor before and after; they lie in one unit (FSDP asks for the same).
    """
    made: dict[int, torch.Tensor] = {}
    before: list[torch.Tensor] = []  # keeps their ids from being given to others
    for module in unit.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None or isinstance(tensor, DTensor):
                    continue
                if id(tensor) not in made:
                    before.append(tensor)
                    made[id(tensor)] = _filled(tensor, device)
                held[name] = made[id(tensor)]  # pyright: ignore[reportArgumentType]


def _filled(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    out = tensor
    if tensor.is_meta:
        out = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        if isinstance(tensor, torch.nn.Parameter):
            out = torch.nn.Parameter(out, requires_grad=tensor.requires_grad)
    elif tensor.device != device:
        out.data = tensor.data.to(device)
    with dist.collective("weights of the model"):
        torch_dist.broadcast(out.data, src=0)
    return out
