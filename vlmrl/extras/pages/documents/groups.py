"""The kept groups of a run, followed while they are being written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.errors import StorageError
from vlmrl.extras.pages.kept.media import path_of
from vlmrl.extras.pages.kept.read import MEDIA, Shard, numbers, rank_folders


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
