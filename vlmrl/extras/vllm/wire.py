"""Messages between the trainer and rollout servers: JSON and raw tensors, and nothing in them that could become code.

    8 bytes    name and version of the format
    8 bytes    length of the header, little endian
    header     JSON {"body": {...}, "tensors": [[name, type, shape], ...]}, filled up with spaces to a multiple of 8
    tensors    their bytes one after the other, each filled up to a multiple of 8

Neither side needs the other's packages: no types of transformers or vLLM, no pickle. What is received is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vlmrl.web.guard import read_json

MAGIC = b"vlmrl\x00\x00\x01"
MOST_HEADER = 2**26
"""Bytes of a header."""
_TYPES = {
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}

Named = tuple[str, torch.Tensor]


class WireError(ValueError):
    """These bytes are no message."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """What was sent. Its tensors share the memory that it was received in."""

    body: dict[str, Any]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])


def encode(body: dict[str, Any], tensors: Iterable[Named] = ()) -> list[memoryview]:
    """The pieces of a message, in order. Tensors are not copied, unless they are elsewhere than in this machine's memory."""
    listed: list[list[Any]] = []
    parts: list[memoryview] = []
    for name, tensor in tensors:
        if tensor.dtype not in _NAMES:
            raise WireError(f"tensor '{name}' is of type {tensor.dtype}, which has no name on the wire")
        listed.append([name, _NAMES[tensor.dtype], list(tensor.shape)])
        raw = tensor.detach().cpu().contiguous().reshape(-1)
        if raw.numel():
            parts.append(raw.view(torch.uint8).numpy().data)
            parts.append(memoryview(b"\0" * _filler(parts[-1].nbytes)))
    header = json.dumps({"body": body, "tensors": listed}, allow_nan=False, separators=(",", ":")).encode()
    header += b" " * _filler(len(header))
    return [memoryview(MAGIC + len(header).to_bytes(8, "little") + header), *(part for part in parts if part.nbytes)]


def length(pieces: Sequence[memoryview]) -> int:
    """Bytes of a message."""
    return sum(piece.nbytes for piece in pieces)


def decode(data: bytearray) -> Message:
    """
    Raises:
        WireError: not a message, or not all of one.
    """
    if len(data) < 16 or bytes(data[:8]) != MAGIC:
        raise WireError("it does not begin as a message of this version")
    size = int.from_bytes(data[8:16], "little")
    if size % 8 or size > min(MOST_HEADER, len(data) - 16):
        raise WireError("its header is cut off")
    header = _header(bytes(data[16 : 16 + size]))
    tensors: dict[str, torch.Tensor] = {}
    place = 16 + size
    for name, dtype, shape in header["tensors"]:
        count = math.prod(shape)
        nbytes = count * _TYPES[dtype].itemsize
        if place + nbytes > len(data):
            raise WireError(f"tensor '{name}' is cut off")
        if name in tensors:
            raise WireError(f"tensor '{name}' comes twice")
        flat = torch.frombuffer(data, dtype=_TYPES[dtype], count=count, offset=place) if count else torch.empty(0, dtype=_TYPES[dtype])
        tensors[name] = flat.reshape(shape)
        place += nbytes + _filler(nbytes)
    if place != len(data):
        raise WireError(f"{len(data) - place} bytes too many")
    return Message(body=header["body"], tensors=tensors)


def _header(raw: bytes) -> dict[str, Any]:
    try:
        header = read_json(raw)
    except ValueError as error:
        raise WireError(f"its header is not JSON: {str(error)[:100]}") from error
    sound = (
        isinstance(header, dict)
        and set(header) == {"body", "tensors"}
        and isinstance(header["body"], dict)
        and isinstance(header["tensors"], list)
        and all(map(_is_tensor, header["tensors"]))
    )
    if not sound:
        raise WireError("its header is not that of a message")
    return header


def _is_tensor(given: Any) -> bool:
    if not isinstance(given, list) or len(given) != 3:
        return False
    name, dtype, shape = given
    return (
        isinstance(name, str)
        and isinstance(dtype, str)
        and dtype in _TYPES
        and isinstance(shape, list)
        and len(shape) <= 8
        and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    )


def _filler(size: int) -> int:
    return -size % 8


def digest(ids: Sequence[int]) -> str:
    """Hash of token ids: what a server says that it was asked, without sending it back."""
    return hashlib.blake2b(np.asarray(ids, dtype="<i8").tobytes(), digest_size=16).hexdigest()
