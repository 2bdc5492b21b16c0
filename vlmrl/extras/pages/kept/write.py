"""Writes kept groups of one rank: append-only shards with an index, media by key, within a budget of bytes.

When the budget is used up, the run is kept more thinly: the shard whose steps lie closest between those of its neighbours goes, with the
media that no other shard shows. The first and the newest shard stay, so that what is left reaches over the whole run.

A killed process leaves at most one unfinished line, which is cut off at the next start, together with the groups of steps that the
resumed run computes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.extras.pages.kept.media import path_of
from vlmrl.extras.pages.kept.read import MEDIA, entries_of, index_path, numbers, rank_folders, shard_path
from vlmrl.extras.pages.kept.record import line_of, summary

SHARDS = 64
"""A shard is closed when it and the media that came with it weigh this share of the budget."""
LEAST = 1 << 16
"""Bytes from which a shard may be closed."""


class KeptWriter:
    """The kept groups of one rank, open for appending.

    Args:
        folder: `<run>/groups/rank-<n>`.
        budget: bytes of records, indices and media together; the newest shard may go beyond it.
        last_step: the run's last step that counts; groups of later ones are cut off.
    """

    def __init__(self, folder: Path, *, budget: int, last_step: int):
        self.folder, self.budget = folder, budget
        fs.mkdir(folder / MEDIA)
        self._entries: dict[int, list[dict[str, Any]]] = {}
        for number in numbers(folder):
            entries = mend(folder, number, last_step)
            if entries:
                self._entries[number] = entries
        self._media = {path.stem: path.stat().st_size for path in (folder / MEDIA).glob("*.zip")}
        self._drop_unused(set(self._media))
        self._number = max(self._entries, default=0)
        self._fresh = 0
        """Bytes of media that came with the newest shard."""

    def lacks(self, keys: list[str]) -> list[str]:
        """Those of the media that have no file yet."""
        return [key for key in keys if key not in self._media]

    def add(self, record: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Append a group, after the media that came with it. StorageError, where the disk refused; the shard then ends with the group
        before."""
        for key, data in files.items():
            fs.write_bytes(path_of(self.folder / MEDIA, key), data)
            self._media[key] = len(data)
            self._fresh += len(data)
        shard = shard_path(self.folder, self._number)
        at, line = fs.length(shard), line_of(record)
        entry = summary(record, at, len(line))
        fs.append(shard, line)
        fs.append(index_path(self.folder, self._number), line_of(entry))
        self._entries.setdefault(self._number, []).append(entry)
        if at + len(line) + self._fresh >= max(LEAST, self.budget // SHARDS):
            self.sync()
            self._number, self._fresh = self._number + 1, 0
            self._thin()

    def sync(self) -> None:
        """Make the newest shard durable."""
        for path in (shard_path(self.folder, self._number), index_path(self.folder, self._number)):
            if path.exists():
                fs.sync(path)
        fs.fsync_dir(self.folder)

    def bytes(self) -> int:
        """What is there weighs so much."""
        files = [path(self.folder, number) for number in self._entries for path in (shard_path, index_path)]
        return sum(fs.length(path) for path in files) + sum(self._media.values())

    def _thin(self) -> None:
        while self.bytes() > self.budget:
            gone = closest({number: entries[0]["global_step"] for number, entries in self._entries.items()})
            if gone is None:
                return
            shown = {key for entry in self._entries.pop(gone) for key in entry["media"]}
            fs.unlink(index_path(self.folder, gone))
            fs.unlink(shard_path(self.folder, gone))
            self._drop_unused(shown)

    def _drop_unused(self, keys: set[str]) -> None:
        """Remove those of the media that no shard shows."""
        used = {key for entries in self._entries.values() for entry in entries for key in entry["media"]}
        for key in sorted(keys & set(self._media) - used):
            fs.unlink(self.folder / MEDIA / f"{key}.zip")
            del self._media[key]


def closest(steps: Mapping[int, int]) -> int | None:
    """The shard that is missed least: of those between the first and the last, the one whose neighbours' first steps lie closest
    together, the oldest of several; None if there are fewer than three."""
    order = sorted(steps)
    inner = [(steps[after] - steps[before], number) for before, number, after in zip(order, order[1:], order[2:], strict=False)]
    return min(inner)[1] if inner else None


def mend(folder: Path, number: int, last_step: int) -> list[dict[str, Any]]:
    """Cut a shard behind its last whole group of a step that counts, and make its index whole. Returns the index."""
    path, index, entries = shard_path(folder, number), index_path(folder, number), entries_of(folder, number)
    entries = entries[: next((n for n, entry in enumerate(entries) if entry["global_step"] > last_step), len(entries))]
    if not entries:
        fs.unlink(path)
        if index.exists():
            fs.unlink(index)
        return []
    fs.truncate(path, entries[-1]["at"] + entries[-1]["length"])
    text = b"".join(line_of(entry) for entry in entries)
    if not index.exists() or index.read_bytes() != text:
        fs.write_bytes(index, text)
    return entries


def cut_others(groups: Path, world: int, last_step: int) -> None:
    """Cut what ranks kept that are no longer there: their steps behind `last_step` are computed again by others."""
    for rank, folder in rank_folders(groups).items():
        if rank >= world:
            for number in numbers(folder):
                mend(folder, number, last_step)
