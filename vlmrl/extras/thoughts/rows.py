"""Adds thoughts to a file of rows: the data side of reverse thinking (TON, arXiv:2505.16854, section 3).

    derive = functools.partial(reverse_thoughts, engine, encoder, settings=..., seed=0)     # thoughts.reverse
    report = add_thoughts(Path("train.jsonl"), Path("train-thoughts.jsonl"), derive, media_root="media")

Rows that have a thought, and those that get none, are copied byte for byte; the latter are taught with the empty thought.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.data.row import parse_row
from vlmrl.data.source import load_source
from vlmrl.errors import DataError, RowError
from vlmrl.types import Sample

Derive = Callable[[Sequence[Sample]], Iterable[tuple[str, str | None, str]]]
"""Samples to (sample id, thought or None, reason), each sample once."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class ThoughtsReport:
    """What was written."""

    rows: int
    kept: int
    """Rows that had a thought before."""
    added: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Why rows have no thought, most frequent first."""
    without: tuple[str, ...] = ()
    """Ids of the rows without a thought, in the order of the file."""


def add_thoughts(source: Path, target: Path, derive: Derive, *, media_root: str, overwrite: bool = False) -> ThoughtsReport:
    """Write `target`: the rows of `source`, with thoughts where `derive` gives one. `overwrite` also replaces thoughts that are there.

    Raises:
        DataError: `source` is no .jsonl file or has a bad row, `target` is the same file, `derive` leaves a row out or names a strange
            one, or a thought would make its row invalid.
        StorageError: the disk refused; `target` is then as it was.
    """
    if source.suffix != ".jsonl":
        raise DataError(f"{source}: thoughts are added to .jsonl files; convert the file first")
    if target.exists() and source.exists() and target.samefile(source):
        raise DataError(f"{target}: is the source itself; write to another file")
    samples = load_source(source, media_root=media_root, dedupe="error", max_bad_rows=None, quarantine=None)
    wanted = [s for s in samples if overwrite or not (s.thought or "").strip()]
    thoughts, reasons = _collect(source, wanted, derive(wanted))
    fs.write_bytes(target, _rewritten(source, samples, thoughts, media_root))
    return ThoughtsReport(
        rows=len(samples),
        kept=len(samples) - len(wanted),
        added=len(thoughts),
        reasons=dict(Counter(reasons[s.id] for s in wanted if s.id not in thoughts).most_common()),
        without=tuple(s.id for s in wanted if s.id not in thoughts and not (s.thought or "").strip()),
    )


def _collect(
    source: Path, wanted: Sequence[Sample], derived: Iterable[tuple[str, str | None, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """(thought by id, reason by id), after a check that every wanted sample is there once."""
    thoughts: dict[str, str] = {}
    reasons: dict[str, str] = {}
    ids = {s.id for s in wanted}
    for sample_id, thought, reason in derived:
        if sample_id not in ids or sample_id in reasons:
            raise DataError(f"{source}: a thought came for row '{sample_id}', which was not asked for, or twice")
        reasons[sample_id] = reason
        if thought is not None:
            thoughts[sample_id] = thought
    missing = [s.id for s in wanted if s.id not in reasons]
    if missing:
        raise DataError(f"{source}: nothing came for {len(missing)} of {len(wanted)} rows, first '{missing[0]}'")
    return thoughts, reasons


def _rewritten(source: Path, samples: Sequence[Sample], thoughts: dict[str, str], media_root: str) -> bytes:
    """The content of the new file."""
    by_line = {int(s.source.rpartition(":")[2]): s.id for s in samples}
    out: list[bytes] = []
    for number, line in enumerate(source.read_bytes().removeprefix(_BOM).split(b"\n"), start=1):
        sample_id = by_line.get(number)
        out.append(line if sample_id not in thoughts else _with_thought(source, number, line, thoughts[sample_id], media_root))
    return b"\n".join(out)


def _with_thought(source: Path, number: int, line: bytes, thought: str, media_root: str) -> bytes:
    row: dict[str, Any] = {**json.loads(line), "thought": thought}
    try:
        parse_row(row, source=f"{source}:{number}", media_root=media_root)
    except RowError as error:
        raise DataError(f"{source}:{number}: with its new thought the row is invalid: {error}") from error
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
