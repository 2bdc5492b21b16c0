"""Reads kept groups while they are being written: by the index, and what the index lacks from the shards themselves.

A shard `<number>.jsonl` holds records, `<number>.index.jsonl` one short line for each, written after it. The shard alone counts: an index
that is missing, torn or behind is completed by reading the rest of the shard. Reading never writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl.errors import StorageError
from vlmrl.extras.pages.kept.record import VERSION, summary

NAME = re.compile(r"(\d{6,9})\.jsonl")
RANK = re.compile(r"rank-(\d{1,6})")
MEDIA = "media"
KEYS = {"at", "length", "step", "global_step", "content"}
"""Of a line of the index, at least."""


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


@dataclass(kw_only=True)
class Shard:
    """The index of one shard, which grows with the file."""

    folder: Path
    number: int
    entries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _stamp: tuple[int, int] | None = None

    def follow(self) -> bool:
        """Take in what was written since; whether what was known before still holds, which it does not where the run was resumed from an
        earlier step."""
        status = shard_path(self.folder, self.number).stat()
        stamp = status.st_size, status.st_mtime_ns
        if stamp == self._stamp:
            return True
        before, self.entries, self._stamp = self.entries, self._by_index(status.st_size), stamp
        self._by_lines()
        return self.entries[: len(before)] == before

    def _by_index(self, size: int) -> list[dict[str, Any]]:
        path, found, covered = index_path(self.folder, self.number), list[dict[str, Any]](), 0
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            entry = _object(line)
            # damaged, behind, or of an earlier version: the rest is read from the shard
            if entry is None or not set(entry) >= KEYS or entry["at"] != covered or covered + entry["length"] > size:
                break
            found.append(entry)
            covered += entry["length"]
        return found

    def _by_lines(self) -> None:
        covered = self.entries[-1]["at"] + self.entries[-1]["length"] if self.entries else 0
        with shard_path(self.folder, self.number).open("rb") as file:
            file.seek(covered)
            for line in file:
                record = _object(line) if line.endswith(b"\n") else None
                if record is None or record.get("v") != VERSION:
                    return
                self.entries.append(summary(record, covered, len(line)))
                covered += len(line)

    def record(self, at: int) -> dict[str, Any]:
        """The record that begins at a byte of the shard.

        Raises:
            StorageError: none does.
        """
        path = shard_path(self.folder, self.number)
        entry = next((one for one in self.entries if one["at"] == at), None)
        if entry is None:
            raise StorageError(f"{path}: no group begins at byte {at}")
        with path.open("rb") as file:
            file.seek(at)
            record = _object(file.read(entry["length"]))
        if record is None:
            raise StorageError(f"{path}: what begins at byte {at} is no group; the file was changed")
        return record


class KeptGroups:
    """All kept groups of a run, by their short lines. `follow` before each use; several threads need a lock around it."""

    def __init__(self, groups: Path):
        self.path = groups
        self.generation = 0
        """Grows when something that was there is gone, so that places in lists no longer hold."""
        self._shards: dict[tuple[int, int], Shard] = {}

    def follow(self) -> None:
        """Take in what was written since the last call."""
        there = {(rank, number): folder for rank, folder in rank_folders(self.path).items() for number in numbers(folder)}
        for gone in set(self._shards) - set(there):
            del self._shards[gone]
            self.generation += 1
        for place, folder in sorted(there.items()):
            shard = self._shards.setdefault(place, Shard(folder=folder, number=place[1]))
            try:
                self.generation += not shard.follow()
            except FileNotFoundError:  # thinned out between the listing and now
                del self._shards[place]
                self.generation += 1

    def __len__(self) -> int:
        return sum(len(shard.entries) for shard in self._shards.values())

    def entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(address, line of the index) of every group, by rank and shard."""
        for _, place, entries in self.lists():
            for entry in entries:
                yield f"{place}-{entry['at']}", entry

    def lists(self) -> Iterator[tuple[tuple[int, int], str, list[dict[str, Any]]]]:
        """(shard, how addresses of its groups begin, lines of its index), which only grow while `generation` is the same."""
        for (rank, number), shard in self._shards.items():
            yield (rank, number), f"{rank}-{number}", shard.entries

    def record(self, address: str) -> dict[str, Any]:
        """A whole group by its address.

        Raises:
            StorageError: there is none under it.
        """
        match = re.fullmatch(r"(\d{1,6})-(\d{1,9})-(\d{1,15})", address)
        shard = None if match is None else self._shards.get((int(match[1]), int(match[2])))
        if match is None or shard is None:
            raise StorageError(f"no kept group has the address {address!r:.60}")
        return shard.record(int(match[3]))


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
