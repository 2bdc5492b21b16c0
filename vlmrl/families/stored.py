"""What the headers of a checkpoint's shards say of its tensors. No weights are read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vlmrl.errors import CheckpointError

_LONGEST = 100 << 20
"""Bytes of a header that are believed, as in safetensors itself."""
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Count the numbers in it."""
        return math.prod(self.shape)


def stored(folder: Path) -> Mapping[str, Stored]:
    """Read the headers of all `*.safetensors` of a folder: their tensors, by name.

    Raises:
        CheckpointError: a file has no header that can be read, or is shorter than its header says.
    """
    out: dict[str, Stored] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            out |= _header(file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{file}: its header cannot be read: {error}") from error
    return out


def _header(file: Path) -> dict[str, Stored]:
    with file.open("rb") as handle:
        # safetensors: 8 bytes with the length of a JSON header, the header, then the tensors
        length = int.from_bytes(handle.read(8), "little")
        if not 0 < length <= min(_LONGEST, file.stat().st_size - 8):
            raise ValueError(f"{length} bytes of header in {file.stat().st_size} bytes")
        header = json.loads(handle.read(length))
    named = {name: entry for name, entry in header.items() if name != "__metadata__"}
    # offsets count from the end of the header; a file that was cut while it was copied is shorter than the last of them
    end = max((int(entry["data_offsets"][1]) for entry in named.values()), default=0)
    if 8 + length + end > file.stat().st_size:
        raise ValueError(f"{8 + length + end} bytes expected, {file.stat().st_size} there")
    return {name: Stored(str(entry["dtype"]), tuple(int(n) for n in entry["shape"])) for name, entry in named.items()}


def sizes(tensors: Mapping[str, Stored]) -> tuple[int, int]:
    """Count (numbers, bytes) of all tensors.

    Returns:
        (numbers, bytes); types that are not known count 4 bytes each.
    """
    return sum(t.count for t in tensors.values()), sum(t.count * BYTES.get(t.dtype, 4) for t in tensors.values())
