"""AdamW with moments of 8 bits (bitsandbytes): blocks of 256 numbers share a scale, tensors below 4096 numbers keep 32 bits.

What it remembers of a parameter is `step`, `state1` and `state2` (the moments) and `absmax1` and `absmax2` (the scales of their blocks).
Two tables of the 256 values that 8 bits stand for are constants: they are not saved, and put back here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from vlmrl.config.section import OptimSection
from vlmrl.errors import ConfigError
from vlmrl.train.adamw import Made, names_of
from vlmrl.train.tensors import Moments

BLOCK = 256
SMALLEST = 4096
"""Numbers of a tensor from which its moments have 8 bits."""
KINDS = ("step", "state1", "state2", "absmax1", "absmax2")
_TABLES = {"qmap1": "dynamic", "qmap2": "udynamic"}


def make(groups: list[dict[str, Any]], cfg: OptimSection, *, fused: bool = False) -> Made:
    """The optimizer over the groups of `adamw.groups_of`.

    Raises:
        ConfigError: bitsandbytes does not load here.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of kernels that are not used here
    try:
        from bitsandbytes.optim.adamw import AdamW8bit  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"optim.kind: 'adamw8bit' needs the bitsandbytes package, which does not load here ({error}); "
            "pip install 'vlmrl[bitsandbytes]', or take adamw"
        ) from error
    del fused  # it always is
    order = names_of(groups)
    optimizer: Any = AdamW8bit(groups, lr=cfg.lr, betas=cfg.betas, min_8bit_size=SMALLEST)
    optimizer.moments = Blocks()
    return optimizer, order


class Blocks(Moments):
    """Moments in blocks that share a scale."""

    def kinds(self, parameter: torch.Tensor) -> tuple[str, ...]:
        return KINDS

    def needed(self, parameter: torch.Tensor) -> set[str]:
        return set(KINDS if parameter.numel() >= SMALLEST else KINDS[:3])

    def expected(self, kind: str, parameter: torch.Tensor, value: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
        if kind == "step":
            return (), torch.int64
        if kind in ("absmax1", "absmax2"):
            return (-(-parameter.numel() // BLOCK),), torch.float32
        return tuple(parameter.shape), torch.uint8 if parameter.numel() >= SMALLEST else torch.float32

    def saved(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        out = {kind: value for kind, value in state.items() if kind not in _TABLES}
        return out | {"step": torch.tensor(out["step"], dtype=torch.int64)} if out else out

    def restored(self, opt: Any, state: dict[str, torch.Tensor], device: torch.device) -> dict[str, Any]:
        out: dict[str, Any] = {kind: int(value) if kind == "step" else value for kind, value in state.items()}
        if "absmax1" in out:
            tables = opt.name2qmap
            for kind, name in _TABLES.items():
                tables[name] = tables[name].to(device)
                out[kind] = tables[name]
        return out

    def room(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        kind = torch.uint8 if parameter.numel() >= SMALLEST else parameter.dtype
        return [torch.empty_like(parameter, dtype=kind) for _ in range(2)]
