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
from vlmrl.extras.pages.kept.media import path_of
from vlmrl.extras.pages.kept.record import VERSION, summary

NAME = re.compile(r"(\d{6,9})\.jsonl")
RANK = re.compile(r"rank-(\d{1,6})")
MEDIA = "media"


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
    covered: int = 0
    """Bytes of the shard that `entries` are about."""
    _read: int = 0
    """Bytes of the index that were read."""
    _inode: int = 0

    def follow(self) -> bool:
        """Take in what was written since; whether what was known before still holds. A shard that was cut (its run was resumed from an
        earlier step) is read anew."""
        path = shard_path(self.folder, self.number)
        status = path.stat()
        same = status.st_size >= self.covered and self._inode in (0, status.st_ino)
        if not same:
            self.entries, self.covered, self._read = [], 0, 0
        self._inode = status.st_ino
        if status.st_size > self.covered:
            self._by_index(status.st_size)
        if status.st_size > self.covered:
            self._by_lines()
        return same

    def _by_index(self, size: int) -> None:
        path = index_path(self.folder, self.number)
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            entry = _object(line)
            if entry is None or not {"at", "length", "step", "global_step", "content"} <= set(entry):
                return  # damaged, or of an earlier version: the rest is read from the shard
            if entry["at"] < self.covered:
                continue
            if entry["at"] != self.covered or entry["at"] + entry["length"] > size:
                return
            self.entries.append(entry)
            self.covered += entry["length"]
        self._read += len(whole)

    def _by_lines(self) -> None:
        with shard_path(self.folder, self.number).open("rb") as file:
            file.seek(self.covered)
            for line in file:
                record = _object(line) if line.endswith(b"\n") else None
                if record is None or record.get("v") != VERSION:
                    return
                self.entries.append(summary(record, self.covered, len(line)))
                self.covered += len(line)

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

    def media(self, key: str) -> Path | None:
        """The file of a medium, whichever rank kept it. `key` must look like one."""
        found = (path_of(folder / MEDIA, key) for folder in rank_folders(self.path).values())
        return next((path for path in found if path.is_file()), None)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
