"""What `vlmrl list` shows of presets and methods, kept in a file, because asking the registries imports every method and torch.

The file is named after the package's folder and the Python, and holds the digest of the sources that it was made from; after any change of
these it is made again. Methods of plug-ins are never in it: with plug-ins the registries are asked.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vlmrl import fs, paths
from vlmrl.errors import StorageError

CACHE = Path("~/.cache/vlmrl")
"""Where the file is, beside generated worlds."""
PRESETS = "algorithm"
"""What presets are listed under, beside the slots."""
T = TypeVar("T", bound=Mapping[str, Any])
Listed = Mapping[str, Sequence[Mapping[str, Any]]]
"""`algorithm` for the presets, or a slot -> the descriptions of what it has (`vlmrl.methods.described`)."""


def listed(plugins: Sequence[str] = ()) -> Listed:
    """Return what can be listed: `algorithm` for the presets, then the slots.

    Args:
        plugins: modules whose registrations are listed too.

    Raises:
        ConfigError: a plug-in cannot be imported, or a preset cannot be read.
    """
    return gathered(plugins) if plugins else kept(CACHE.expanduser(), gathered)


def kept(folder: Path, make: Callable[[], T], *, name: str = "methods") -> T:
    """Return the index in a folder; where none is there of these sources, `make` it and keep it. `name` is which."""
    installed = hashlib.blake2b(f"{paths.PACKAGE.resolve()} {sys.version}".encode(), digest_size=8).hexdigest()
    path, digest = folder / f"{name}-{installed}.json", sources_digest()
    try:
        found = json.loads(path.read_bytes())
        if found["digest"] == digest:
            return found["index"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or one that is damaged: it is made again
    made = make()
    try:
        fs.mkdir(folder)
        fs.write_text(path, json.dumps({"digest": digest, "index": made}))
    except StorageError:
        pass  # a home without space or permission makes the next call slow, and nothing else
    return made


def sources_digest() -> str:
    """Return the digest of every file that decides the index: our modules, cards and presets, by name and content."""
    digest = hashlib.blake2b(digest_size=16)
    for name, path in _sources(paths.PACKAGE, paths.shipped(paths.KINDS["algorithm"])):
        data = path.read_bytes()
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def _sources(package: Path, presets: Path) -> Iterator[tuple[str, Path]]:
    """Name and place of each file. What a wheel ships below the package are recipes and data, but for the presets."""
    for pattern in ("*.py", "*.yaml", "*.json"):
        for path in sorted(package.rglob(pattern)):
            name = path.relative_to(package)
            if name.parts[0] != paths.SHIPPED:
                yield name.as_posix(), path
    for path in sorted(presets.glob("*.yaml")):
        yield path.name, path


def gathered(plugins: Sequence[str] = ()) -> Listed:
    """Return the same from the registries, after importing our methods and these plug-ins.

    Without plug-ins it is our methods alone, whatever else has been registered in this process: the next process would not know it.
    """
    from vlmrl.methods import described, listed_presets, registries

    out: dict[str, list[dict[str, Any]]] = {PRESETS: listed_presets()}
    for slot, registry in registries(plugins).items():
        entries = map(registry.get, registry.names())
        out[slot] = [described(slot, entry) for entry in entries if plugins or entry.ours]
    return out
