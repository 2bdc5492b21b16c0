"""Manifests: size and sha256 of every file of a folder, sealed with a digest of their own. Hashes detect damage, not a forger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.errors import CheckpointError

MANIFEST = "manifest.json"
EXPORTED = 1
"""Version of the manifest of an exported folder (`run.export`)."""
_THREADS = 4
"""Files that are hashed at a time; hashing does not hold Python's lock."""


class DamagedError(CheckpointError):
    """A sealed file that cannot be trusted."""


def sealed(body: Mapping[str, Any]) -> bytes:
    """Write a sealed file in its only spelling: sorted JSON, with a digest of the rest, so that no changed byte goes unnoticed."""
    plain = json.dumps(body, sort_keys=True)
    return json.dumps({**body, "digest": hashlib.sha256(plain.encode()).hexdigest()}, sort_keys=True, indent=1).encode()


def unsealed(raw: bytes, name: str) -> dict[str, Any]:
    """Read what `sealed` was given, with its `digest`.

    Raises:
        DamagedError: a byte is not as it was written.
    """
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise DamagedError(f"{name}: not JSON: {error}") from error
    # whole bytes are compared: the same content in another spelling was not written here
    if not isinstance(body, dict) or raw != sealed({k: v for k, v in body.items() if k != "digest"}):
        raise DamagedError(f"{name}: content differs from its digest")
    return body


def listing(folder: Path, only: Callable[[str], bool] = lambda name: name != MANIFEST) -> list[dict[str, Any]]:
    """List path, size and sha256 of every file below a folder but its manifest, or of those whose relative names `only` takes."""
    found = {name: path for name, path in sorted(files(folder).items()) if only(name)}
    hashes = sha256_of(found.values())
    return [{"path": name, "size": path.stat().st_size, "sha256": hashes[path]} for name, path in found.items()]


def write_manifest(folder: Path, body: Mapping[str, Any], known: Mapping[str, dict[str, Any]] | None = None) -> str:
    """Write `manifest.json` of all files in a folder, with `body` beside them.

    Args:
        known: entries of files whose hashes are known already, by path: the ranks that wrote them have read them.

    Returns:
        The manifest's digest.
    """
    known = known or {}
    entries = [*known.values(), *listing(folder, only=lambda name: name != MANIFEST and name not in known)]
    # sorted, so that the manifest does not depend on which rank wrote which file
    raw = sealed({**body, "files": sorted(entries, key=lambda entry: entry["path"])})
    fs.write_bytes(folder / MANIFEST, raw)
    return json.loads(raw)["digest"]


def read_sealed(folder: Path, name: str = MANIFEST) -> dict[str, Any]:
    """Read the content of a sealed file.

    Raises:
        DamagedError: it is missing or damaged.
    """
    file = folder / name
    if not file.is_file() or file.is_symlink():
        raise DamagedError(f"{name}: missing")
    return unsealed(file.read_bytes(), name)


def differing(folder: Path, listed: Iterable[Mapping[str, Any]]) -> list[str]:
    """List how a folder differs from the files that its manifest lists, one line each."""
    entries = {entry["path"]: entry for entry in listed}
    present = files(folder)
    problems = [f"{name}: is not in the manifest" for name in sorted(set(present) - set(entries) - {MANIFEST})]
    whole: dict[str, Path] = {}
    for name, entry in entries.items():
        file = present.get(name)
        if file is None:
            problems.append(f"{name}: missing")
        elif file.is_symlink() or not file.is_file():
            problems.append(f"{name}: is not a plain file")
        elif file.stat().st_size != entry["size"]:
            problems.append(f"{name}: {file.stat().st_size} bytes instead of {entry['size']}")
        else:
            whole[name] = file
    hashes = sha256_of(whole.values())
    problems += [f"{name}: content differs from its sha256" for name, file in whole.items() if hashes[file] != entries[name]["sha256"]]
    return problems


def damage(path: Path, known: str | None = None) -> list[str]:
    """How an exported folder differs from what was written, one line each; empty where every file is as it was.

    Args:
        known: the digest of its manifest, from elsewhere.

    Raises:
        CheckpointError: its manifest is of a newer version.
    """
    if not path.is_dir():
        return ["missing"]
    try:
        manifest = read_sealed(path)
    except DamagedError as error:
        return [str(error)]
    if manifest.get("schema", 0) > EXPORTED:
        raise CheckpointError(f"{path}: exported with schema {manifest['schema']}, this version reads up to {EXPORTED}; upgrade vlmrl")
    problems = differing(path, manifest["files"])
    if not problems and known not in (None, manifest["digest"]):
        return ["is another export than the one that was written here"]
    return problems


def seal_of(path: Path) -> str:
    """The digest of an exported folder's manifest: equal for two folders exactly when their files are.

    Raises:
        DamagedError: there is no manifest, or it is damaged.
    """
    return read_sealed(path)["digest"]


def files(folder: Path) -> dict[str, Path]:
    """Find the regular files below a folder by relative name; links count under their own name but never lead anywhere else."""
    return {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_of(paths: Iterable[Path]) -> dict[Path, str]:
    """Hash several files, a few at a time; a file under two names (hard links) is read once."""
    inodes = {path: (status.st_dev, status.st_ino) for path in paths for status in [path.stat()]}
    first = {inode: path for path, inode in inodes.items()}
    with ThreadPoolExecutor(_THREADS) as threads:
        made = dict(zip(first, threads.map(sha256, first.values()), strict=True))
    return {path: made[inode] for path, inode in inodes.items()}
