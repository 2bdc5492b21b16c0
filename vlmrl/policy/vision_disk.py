"""The disk store of vision features, so that a frozen tower encodes a medium once for all runs that share the folder.

One safetensors file per entry, named by the hash of what the features depend on: the handle's key (content and processing of the
medium), the tower's fingerprint (`policy.vision.tower_fingerprint`) and the compute type. Files are written durably under a temporary
name and renamed, so several processes may share a folder: a reader sees a whole file or none, and a file that another process evicts
is a miss. Every read is checked against the hash in the file's header. A file that fails is removed and counted, and the caller
encodes again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.policy.vision import Features

_VERSION = "1"
"""Part of every name; raise it when the layout of the files changes."""
_SUFFIX = ".safetensors"
_STALE_SECONDS = 3600.0
"""A temporary file older than this belongs to a process that died while it wrote."""
_LOOKS_PER_BUDGET = 32
"""A process looks for what others wrote after every 1/32 of the budget that it writes itself."""


class FeatureStore:
    """Features by (handle key, tower fingerprint, type) within a byte budget, least recently read or written out first.

    Alone it never exceeds the budget after a write. Each further process that writes may exceed it by 1/32 until it looks again.
    The folder needs write permission for readers too, because a read marks its file as used (by its modification time).
    """

    def __init__(self, folder: str | Path, *, budget_bytes: int):
        """Make the folder if need be.

        Raises:
            ValueError: a budget that is not positive.
            StorageError: the folder cannot be made.
        """
        if budget_bytes < 1:
            raise ValueError(f"budget_bytes {budget_bytes}: must be at least 1")
        self.folder = Path(folder)
        self.budget = budget_bytes
        self.stats: dict[str, int] = {"hits": 0, "misses": 0, "damaged": 0, "stored": 0, "evicted": 0, "too_large": 0}
        """`damaged` files were removed and are counted as misses too; `too_large` entries exceed the whole budget and are not stored."""
        if self.folder.exists() and not self.folder.is_dir():
            raise StorageError(f"{self.folder}: is a file; give a folder for cached vision features")
        fs.mkdir(self.folder)
        self._bytes = 0
        self._unseen = 0
        self._evict()

    def get(self, key: str, fingerprint: str, dtype: torch.dtype) -> Features | None:
        """Read the stored features on the CPU, bit for bit, or None if they are not there (any more) or their file is damaged.

        Raises:
            StorageError: the file is there but the system refuses to read, mark or remove it.
        """
        path = self.path(key, fingerprint, dtype)
        try:
            blob = path.read_bytes()
            with suppress(FileNotFoundError):  # evicted by another process by now; what was read is still whole
                os.utime(path)
        except FileNotFoundError:
            self.stats["misses"] += 1
            return None
        except OSError as error:
            raise StorageError(
                f"{path}: cannot read or mark this cached feature file: {error.strerror or error}; "
                "fix its permissions, or remove the folder, which is only a cache"
            ) from error
        found = _parse(blob, _identity(key, fingerprint, dtype))
        if found is None:
            self.stats["damaged"] += 1
            self.stats["misses"] += 1
            self._remove(path)
            return None
        self.stats["hits"] += 1
        return found

    def put(self, key: str, fingerprint: str, dtype: torch.dtype, features: Features) -> None:
        """Store features, durably, and evict until the budget holds. An entry larger than the budget is counted and left out.

        Raises:
            StorageError: the disk is full or refuses to write.
        """
        blob = _blob(features, _identity(key, fingerprint, dtype))
        if len(blob) > self.budget:
            self.stats["too_large"] += 1
            return
        path = self.path(key, fingerprint, dtype)
        fs.write_bytes(path, blob)  # whole or not at all: others may be reading
        self.stats["stored"] += 1
        self._bytes += len(blob)
        self._unseen += len(blob)
        if self._bytes > self.budget or self._unseen * _LOOKS_PER_BUDGET > self.budget:
            self._evict(keep=path)

    def path(self, key: str, fingerprint: str, dtype: torch.dtype) -> Path:
        """Name the file of an entry."""
        text = json.dumps(_identity(key, fingerprint, dtype), sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}{_SUFFIX}"

    def _evict(self, keep: Path | None = None) -> None:
        """Look at the folder; drop the longest unused files until the budget holds, but not the one just written."""
        files: list[tuple[int, str, int]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another process evicted it between the listing and here
                if entry.name.startswith(fs.TEMPORARY) and time.time() - status.st_mtime > _STALE_SECONDS:
                    self._remove(Path(entry.path))
                elif entry.name.endswith(_SUFFIX) and not entry.name.startswith(fs.TEMPORARY):
                    files.append((status.st_mtime_ns, entry.name, status.st_size))
        # the folder as it is, with what others wrote and dropped
        self._bytes, self._unseen = sum(size for _, _, size in files), 0
        for _, name, size in sorted(files):
            if self._bytes <= self.budget:
                return
            if keep is None or name != keep.name:
                self._bytes -= size
                self.stats["evicted"] += self._remove(self.folder / name)

    @staticmethod
    def _remove(path: Path) -> bool:
        """Remove a file. Returns whether this process did; another one may have been faster."""
        try:
            fs.unlink(path)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return True


def _identity(key: str, fingerprint: str, dtype: torch.dtype) -> dict[str, str]:
    return {"version": _VERSION, "key": key, "fingerprint": fingerprint, "dtype": str(dtype).removeprefix("torch.")}


def _tensors(features: Features) -> dict[str, torch.Tensor]:
    named = {"merged": features.merged, **{f"deepstack.{n}": layer for n, layer in enumerate(features.deepstack)}}
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in named.items()}


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _blob(features: Features, identity: Mapping[str, str]) -> bytes:
    tensors = _tensors(features)
    return save(tensors, metadata={**identity, "sha256": _digest(tensors)})


def _parse(blob: bytes, identity: Mapping[str, str]) -> Features | None:
    """Read the features of a file's bytes; None if they are not exactly what was stored under this identity."""
    try:
        tensors = load(blob)
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    except (SafetensorError, ValueError, KeyError):  # KeyError: a tensor type that this version of the reader does not know
        return None
    if header.get("__metadata__") != {**identity, "sha256": _digest(tensors)}:
        return None
    names = [f"deepstack.{n}" for n in range(len(tensors) - 1)]
    return Features(merged=tensors["merged"], deepstack=tuple(tensors[name] for name in names))
