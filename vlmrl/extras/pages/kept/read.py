"""Reads kept groups while they are being written: by the index, and what the index lacks from the shards themselves.

A shard `<number>.jsonl` holds records, `<number>.index.jsonl` one short line for each, written after it. The shard alone counts: an index
that is missing, torn or behind is completed by reading the rest of the shard. Reading never writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.errors import StorageError
from vlmrl.extras.pages.kept.record import VERSION, summary

NAME = re.compile(r"(\d{6,9})\.jsonl")
RANK = re.compile(r"rank-(\d{1,6})")
MEDIA = "media"
KEYS = {"at", "length", "step", "global_step", "content"}
"""Of a line of the index, at least."""

Shard = tuple[Path, tuple[int, int], list[dict[str, Any]]]
"""Folder, size and time of the file, short lines."""


def shard_path(folder: Path, number: int) -> Path:
    """The shard of a number, in the folder of a rank."""
    return folder / f"{number:06d}.jsonl"


def index_path(folder: Path, number: int) -> Path:
    """Its index."""
    return folder / f"{number:06d}.index.jsonl"


def numbers(folder: Path) -> list[int]:
    """The shards of a rank's folder, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for path in folder.iterdir() if (match := NAME.fullmatch(path.name)))


def rank_folders(groups: Path) -> dict[int, Path]:
    """The folders of the ranks in `<run>/groups`."""
    found = {int(match[1]): path for path in groups.iterdir() if (match := RANK.fullmatch(path.name))} if groups.is_dir() else {}
    return dict(sorted(found.items()))


def entries_of(folder: Path, number: int) -> list[dict[str, Any]]:
    """The short lines of a shard: those of its index as far as they fit, the rest made from the records."""
    shard, index, found, covered = shard_path(folder, number), index_path(folder, number), list[dict[str, Any]](), 0
    size = shard.stat().st_size
    for line in index.read_bytes().splitlines() if index.is_file() else ():
        entry = object_of(line)
        # damaged, behind, or of an earlier version: the rest is read from the shard
        if entry is None or not set(entry) >= KEYS or entry["at"] != covered or covered + entry["length"] > size:
            break
        found.append(entry)
        covered += entry["length"]
    with shard.open("rb") as file:
        file.seek(covered)
        for line in file:
            record = object_of(line) if line.endswith(b"\n") else None
            if record is None or record.get("v") != VERSION:
                break
            found.append(summary(record, covered, len(line)))
            covered += len(line)
    return found


class KeptGroups:
    """All kept groups of a run, by their short lines. `follow` before each use; several threads need a lock around it."""

    def __init__(self, groups: Path):
        self.path = groups
        self.version = 0
        """Grows with every change."""
        self._shards: dict[tuple[int, int], Shard] = {}
        """By rank and number."""

    def follow(self) -> None:
        """Take in what was written since the last call. A shard is read again only where its file has changed."""
        found: dict[tuple[int, int], Shard] = {}
        for rank, folder in rank_folders(self.path).items():
            for number in numbers(folder):
                try:
                    status, known = shard_path(folder, number).stat(), self._shards.get((rank, number))
                    if known is None or known[1] != (status.st_size, status.st_mtime_ns):
                        known = folder, (status.st_size, status.st_mtime_ns), entries_of(folder, number)
                    found[rank, number] = known
                except FileNotFoundError:  # thinned out between the listing and now
                    continue
        self.version += found != self._shards
        self._shards = found

    def __len__(self) -> int:
        return sum(len(entries) for _, _, entries in self._shards.values())

    def entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(address, line of the index) of every group, by rank and shard."""
        for (rank, number), (_, _, entries) in self._shards.items():
            for entry in entries:
                yield f"{rank}-{number}-{entry['at']}", entry

    def record(self, address: str) -> dict[str, Any]:
        """A whole group by its address; StorageError, where there is none under it, or the file was changed."""
        match = re.fullmatch(r"(\d{1,6})-(\d{1,9})-(\d{1,15})", address)
        rank, number, at = (-1, -1, -1) if match is None else (int(one) for one in match.groups())
        folder, _, entries = self._shards.get((rank, number), (self.path, None, []))
        length = next((entry["length"] for entry in entries if entry["at"] == at), None)
        if length is None:
            raise StorageError(f"no kept group has the address {address!r:.60}")
        with shard_path(folder, number).open("rb") as file:
            file.seek(at)
            record = object_of(file.read(length))
        if record is None:
            raise StorageError(f"{shard_path(folder, number)}: what begins at byte {at} is no group; the file was changed")
        return record


def object_of(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None for anything else."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
