"""Splits rows into those to train on and held-out ones, by content: what is shown and asked in one part stands in no row of the other."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.data.raw import Raw, raw_rows
from vlmrl.data.source import BadRow, RowReader, bad_row
from vlmrl.data.stored import stored
from vlmrl.errors import DataError, MediaError, RowError
from vlmrl.run.audit_leak import Hashes, RowContent

ENOUGH = 64
"""Rows from which some are held out."""
LEAST, LARGEST = 16, 200
"""Rows that are held out: a tenth, within these."""
BAD = 0.001
"""Share of rows that may be left out because they cannot be read: that of `data.max_bad_rows`."""
TRAIN, HELD_OUT, PICTURES = "train.jsonl", "held_out.jsonl", "pictures"


@dataclass(frozen=True, kw_only=True)
class Split:
    """What was written."""

    train: int
    held_out: int
    left_out: int
    by: str
    """What keeps the parts apart."""


def wanted(rows: int, given: int | None) -> int:
    """How many of `rows` to hold out."""
    if given is not None:
        return min(given, rows // 2)
    return 0 if rows < ENOUGH else min(max(LEAST, rows // 10), LARGEST)


def split(path: Path, count: int, folder: Path, settings: Mapping[str, Any], media_dir: Path | None) -> Split | None:
    """Write the rows of a source to `folder`, in two files of lines, in their own shape; media that stand in them to files below it.

    Args:
        count: rows to hold out.
        settings: of the source.
        media_dir: folder of the media; None: they stand in the rows, or there are none.

    Returns:
        None where the rows hang together so that no part of about that size can be taken; nothing was written then but media.

    Raises:
        DataError: more than a thousandth of the rows cannot be read.
    """
    root = media_dir or Path(".")
    reader = RowReader(ImportOptions(**settings, media_dir=root), ".")
    importer, pictures = Importer(ImportOptions(**settings, media_dir=root)), f"{folder}/{PICTURES}"
    hashes, rows, contents, bad = Hashes(), list[Any](), list[list[RowContent]](), list[BadRow]()
    for place, raw in raw_rows(path):
        try:
            row = stored(importer.opened(raw.parse()), root=Path("."), folder=pictures)
            found = list(reader.read(Raw(raw.file, raw.line, "object", row), place))
            bad += [one for one in found if isinstance(one, BadRow)]
            content = [hashes.shown(one[0], root) for one in found if not isinstance(one, BadRow)]
        except (RowError, MediaError) as error:
            bad.append(bad_row(raw, RowError(error.reason, str(error).removeprefix(f"{error.reason}: "))))
            continue
        if content:
            rows.append(row)
            contents.append(content)
    if len(bad) > BAD * (len(rows) + len(bad)):
        listed = "".join(f"\n  {row}" for row in bad[:5]) + (f"\n  and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise DataError(f"{path}: {len(bad)} of {len(rows) + len(bad)} rows cannot be used; fix them or take them out:{listed}")
    for by, keys in (("no medium is in both", _media_keys), ("no medium is in both with the same question", _question_keys)):
        chosen = _chosen(_groups([keys(content) for content in contents]), count)
        if chosen:
            for name, part in ((TRAIN, [i for i in range(len(rows)) if i not in chosen]), (HELD_OUT, sorted(chosen))):
                text = "".join(json.dumps(rows[i], ensure_ascii=False) + "\n" for i in part)
                fs.mkdir(folder)
                fs.write_text(folder / name, text)
            return Split(train=len(rows) - len(chosen), held_out=len(chosen), left_out=len(bad), by=by)
    return None


def _media_keys(contents: Sequence[RowContent]) -> list[str]:
    """A row hangs together with all that show one of its media; without media, with those that ask the same."""
    return [key for content in contents for key in (content.media or [content.question])]


def _question_keys(contents: Sequence[RowContent]) -> list[str]:
    return [json.dumps([content.media, content.question]) for content in contents]


def _groups(keys: Sequence[Sequence[str]]) -> list[list[int]]:
    """Rows that share a key, directly or through others, together."""
    parent = list(range(len(keys)))

    def top(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[str, int] = {}
    for i, own in enumerate(keys):
        for key in own:
            parent[top(i)] = top(first.setdefault(key, i))
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for i in range(len(keys)):
        groups[top(i)].append(i)
    # In an order that only the content decides.
    return sorted(groups.values(), key=lambda group: hashlib.sha256(min(key for i in group for key in keys[i]).encode()).digest())


def _chosen(groups: Sequence[Sequence[int]], count: int) -> set[int]:
    """Rows of whole groups, at most `count`; none where that is less than half of it."""
    out: set[int] = set()
    for group in groups:
        if len(out) + len(group) <= count:
            out.update(group)
    return out if 2 * len(out) >= count else set()
