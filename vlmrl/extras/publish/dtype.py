"""The type of the weights that leave a run (`export.dtype`), and the live weights as they are in it.

A base in bfloat16 whose export is float32 is twice as large as it came. What trains, what a checkpoint holds and what a later stage begins
from stay float32: the next start must find the bits that this one goes on with. So only the last stage's export is rounded, and before
its evaluation so are the live weights, which nobody trains any more: what was measured is what is in the folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from vlmrl.config.schema import Config
from vlmrl.families.stored import stored
from vlmrl.policy.model import Policy

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def chosen(cfg: Config, base: Path | None) -> torch.dtype:
    """What `export.dtype` means for a base model.

    Args:
        base: where its files are; None where they are not on this machine.

    Returns:
        With `auto` bfloat16 where most of its numbers are stored in it. A base in float16 gives float32: its range may be too
        small for trained weights.

    Raises:
        CheckpointError: a file of the base has no header that can be read.
    """
    if cfg.export.dtype != "auto" or base is None:
        return DTYPES.get(cfg.export.dtype, torch.float32)
    counts = Counter[str]()
    for tensor in stored(base).values():
        counts[tensor.dtype] += tensor.count
    most = max(counts, key=lambda dtype: counts[dtype], default="F32")
    return torch.bfloat16 if most == "BF16" else torch.float32


def round_weights(policy: Policy, dtype: torch.dtype, say: Callable[[str], None]) -> None:
    """Bring the live weights to the values that they have in `dtype`; their own type stays. Nothing trains afterwards.

    Weights in 4 bits and in shards stay as they are, and that is said.
    """
    if policy.quantized != "none" or policy.shards.taken:
        where = "in 4 bits" if policy.quantized != "none" else "in shards"
        say(f"the last evaluation asks the weights as they trained, {where}; those of the export are rounded to {str(dtype)[6:]}")
        return
    for name, tensor in policy.model.state_dict().items():
        if tensor.is_floating_point() and not torch.equal(rounded := tensor.to(dtype).to(tensor.dtype), tensor):
            tensor.copy_(rounded)
            policy.vision_version += policy.bundle.family.part_of(name) != "language"
