"""What `vlmrl list` shows of presets and methods, kept in a file, because asking the registries imports every method and torch.

The file is named after the package's folder and the Python, and holds the digest of the sources that it was made from; after any change of
these it is made again. Methods of plug-ins are never in it: with plug-ins the registries are asked.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

from vlmrl import fs, paths
from vlmrl.errors import StorageError

CACHE = Path("~/.cache/vlmrl")
"""Where the file is, beside generated worlds."""
PRESETS = ("name", "it sets", "what for", "not in it", "source")
METHODS = ("name", "arguments", "needs", "source", "evidence", "what it does")
"""Heads of the columns of both tables."""


class Shown(TypedDict):
    """A slot, or the presets: what `--json` prints, the heads of the columns, and tables as (title, rows)."""

    json: list[dict[str, Any]]
    columns: Sequence[str]
    tables: Sequence[tuple[str, list[list[str]]]]


def listed(plugins: Sequence[str] = ()) -> dict[str, Shown]:
    """Return what can be listed: `algorithm` for the presets, then the slots.

    Args:
        plugins: modules whose registrations are listed too.

    Raises:
        ConfigError: a plug-in cannot be imported, or a preset cannot be read.
    """
    return gathered(plugins) if plugins else kept(CACHE.expanduser(), gathered)


def kept(folder: Path, make: Callable[[], dict[str, Shown]]) -> dict[str, Shown]:
    """Return the index in a folder; where none is there of these sources, `make` it and keep it."""
    installed = hashlib.blake2b(f"{paths.PACKAGE.resolve()} {sys.version}".encode(), digest_size=8).hexdigest()
    path, digest = folder / f"methods-{installed}.json", sources_digest()
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
    for path in _sources():
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    for folder, pattern in ((paths.PACKAGE, "*.py"), (paths.PACKAGE, "*.yaml"), (paths.PACKAGE, "*.json")):
        yield from sorted(path for path in folder.rglob(pattern) if paths.SHIPPED not in path.parts)
    yield from sorted(paths.shipped(paths.KINDS["algorithm"]).glob("*.yaml"))


def gathered(plugins: Sequence[str] = ()) -> dict[str, Shown]:
    """Return the same from the registries, after importing our methods and these plug-ins."""
    from vlmrl.methods import by_card, described, listed_presets, registries, setting_lines

    presets = listed_presets()
    rows = [[one["name"], "\n".join(setting_lines(one)), one["for"], one["without"], f"{one['title']}, {one['paper']}"] for one in presets]
    out: dict[str, Shown] = {"algorithm": {"json": presets, "columns": PRESETS, "tables": [("algorithm", rows)]}}
    for slot, registry in registries(plugins).items():
        tables = [(f"{slot}. {head}", [_row(method) for method in methods]) for head, methods in by_card(slot, registry)]
        methods = [described(slot, registry.get(name)) for name in registry.names()]
        out[slot] = {"json": methods, "columns": METHODS, "tables": tables}
    return out


def _row(method: dict[str, Any]) -> list[str]:
    from vlmrl.methods import argument_line

    return [
        method["name"],
        "\n".join(argument_line(a) for a in method["arguments"]),
        "\n".join(method["needs"]),
        f"{method['paper']} ({method['card']['read']} read)" if method["card"]["read"] else method["paper"] or "",
        method["card"]["said"],
        method["summary"] + (" (part of it is our guess)" if method["proposed"] else ""),
    ]
