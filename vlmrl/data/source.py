"""Loads files of rows as samples. A bad row is counted with file, line and reason, never skipped in silence and never fatal by itself;
what is fatal is too many of them.

JSONL is read as strict UTF-8 (a byte order mark at the start is allowed), one object per line, without the liberties of Python's
`json`: repeated keys, `NaN` and endless numbers are errors.

What a source may be besides one file is in `data.raw`; rows of other trainers are converted by `data.adapters` before they
are checked.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vlmrl.data.raw import Raw, raw_rows
from vlmrl.data.row import MIXED, parse_row
from vlmrl.errors import DataError, RowError
from vlmrl.registry import load
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.data.adapters import Importer, ImportOptions

Dedupe = Literal["error", "keep_first"]

_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """One row that cannot be used."""

    file: str
    line: int
    """From 1; the row number in Parquet files. Rows of a split conversation share theirs. 0 means the file as a whole."""
    reason: str
    message: str
    excerpt: str
    """The first characters of the row."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}: {self.message}"


@dataclass(kw_only=True)
class SourceReport:
    """Everything that a source holds: each row is in exactly one of `samples`, `bad` and `duplicates`."""

    samples: list[Sample] = field(default_factory=list)
    """In the order of the file."""
    bad: list[BadRow] = field(default_factory=list)
    duplicates: int = 0
    """Rows dropped by `keep_first`: same id and same content as an earlier one."""
    blank: int = 0
    """Empty lines; they are not rows."""
    shape: str | None = None
    """Name of the adapter that read the rows; None where none did."""
    note: str | None = None
    """What was found out about the shape of the rows, for the log."""

    def skip_blank(self) -> None:
        """Count an empty line."""
        self.blank += 1

    @property
    def rows(self) -> int:
        return len(self.samples) + len(self.bad) + self.duplicates

    def reasons(self) -> dict[str, int]:
        """Count the bad rows by reason, most frequent first."""
        return dict(Counter(row.reason for row in self.bad).most_common())


class Ids:
    """The ids of a source, each with where it was met first and a hash of what that row holds: some 250 bytes an id."""

    def __init__(self, dedupe: Dedupe):
        self._dedupe = dedupe
        self._first: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._first)

    def new(self, name: str, where: str, content: bytes) -> bool:
        """Record an id and check whether it is new.

        Args:
            where: `file:line` of the row.
            content: hash of what the row holds, always of the same length.

        Returns:
            False for a repeat of the same content that `keep_first` drops.

        Raises:
            RowError: `duplicate_id`.
        """
        # hash and place in one bytes object: a set of a million ids stays small. File names need not be UTF-8 (surrogateescape)
        first = self._first.setdefault(name, known := content + where.encode("utf-8", "surrogateescape"))
        # the very object that was just put in: the id was not there
        if first is known:
            return True
        same = first.startswith(content)
        if same and self._dedupe == "keep_first":
            return False
        before = first[len(content) :].decode("utf-8", "surrogateescape")
        how = "the same" if same else "different"
        raise RowError("duplicate_id", f"id {name[:100]!r} at {where} is already at {before}, with {how} content")


class RowReader:
    """Makes samples of raw rows. `importer` converts those of other trainers; None: rows of our own schema only."""

    def __init__(self, options: ImportOptions | None, media_root: str):
        """
        Raises:
            DataError: as `Importer`.
        """
        self.importer: Importer | None = None if options is None else load("vlmrl.data.adapters:Importer")(options)
        self._media_root = media_root

    def read(self, raw: Raw, place: int) -> Iterator[tuple[Sample, bytes] | BadRow]:
        """Parse and check a row. `place` is its number within the source, from 1.

        Yields:
            The samples that the row stands for, each with a hash of its content (16 bytes), or why it is none.
        """
        where = f"{raw.file}:{raw.line}"
        try:
            obj = raw.parse()
            found = [obj] if self.importer is None else self._converted(self.importer, obj, where, place)
        except RowError as error:
            yield bad_row(raw, error)
            return
        for obj in found:
            try:
                sample = parse_row(obj, source=where, media_root=self._media_root)
            except RowError as error:
                yield bad_row(raw, error)
            else:
                yield sample, hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).digest()[:16]

    @staticmethod
    def _converted(importer: Importer, obj: object, where: str, place: int) -> list[object]:
        from vlmrl.data.stored import stored

        # bytes become files first: adapters and the schema know paths only
        media = stored(importer.opened(obj), root=importer.options.media_dir, folder=importer.options.media_folder)
        return importer.rows(media, where=where, place=place)


def read_source(path: Path, *, media_root: str, dedupe: Dedupe = "error", options: ImportOptions | None = None) -> SourceReport:
    """Read and check every row of a source (`data.raw` says what that may be). Bad content never raises; it is in the report.

    A repeated id is a bad row (`duplicate_id`), except that `keep_first` drops and counts repeats of the same content.

    Args:
        options: how rows of other trainers become ours; None takes rows of our own schema only.

    Raises:
        DataError: the file is missing or unreadable, has another suffix, needs pyarrow which is not installed, has fewer rows than are
            to be drawn, the adapter does not exist, or `columns` names what there is not.
    """
    report, reader, ids = SourceReport(), RowReader(options, media_root), Ids(dedupe)
    for place, raw in raw_rows(path, report.skip_blank):
        for found in reader.read(raw, place):
            if isinstance(found, BadRow):
                report.bad.append(found)
                continue
            sample, content = found
            try:
                if ids.new(sample.id, sample.source, content):
                    report.samples.append(sample)
                else:
                    report.duplicates += 1
            except RowError as error:
                report.bad.append(bad_row(raw, error))
    if reader.importer is not None:
        check_columns(reader.importer, path)
        report.shape, report.note = reader.importer.chosen, reader.importer.note()
    return report


def check_columns(importer: Importer, path: Path) -> None:
    """Check that every mapped column was seen. To be called when all rows have been read.

    Raises:
        DataError: `columns` names what no row has.
    """
    problem = importer.missing()
    if problem is not None:
        raise DataError(f"{path}: {problem}")


def load_source(
    path: Path,
    *,
    media_root: str,
    dedupe: Dedupe,
    max_bad_rows: float | None,
    quarantine: Path | None,
    options: ImportOptions | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Sample]:
    """Load the good rows of a source, in the order of the file. Bad rows are added to `quarantine` as JSON lines, each once.

    Args:
        max_bad_rows: largest share of bad rows, which the recipe says (`data.max_bad_rows`); None: none may be bad, and there is no
            recipe whose keys could be told.
        options: as `read_source`.
        say: gets the line that tells which foreign shape was detected.

    Raises:
        DataError: the share of bad rows is above `max_bad_rows`, there is no good row, an id is repeated (see `read_source`;
            statistics are kept by id), rows have several shapes, or the file cannot be read.
    """
    report = read_source(path, media_root=media_root, dedupe=dedupe, options=options)
    if say is not None and report.note is not None:
        say(report.note)
    check_usable(path, report.bad, len(report.samples), report.rows, max_bad_rows=max_bad_rows, quarantine=quarantine)
    return report.samples


def check_usable(path: Path, bad: list[BadRow], good: int, rows: int, *, max_bad_rows: float | None, quarantine: Path | None) -> None:
    """Check that a source can be used, of whose `rows` so many are `good`. Bad rows are added to `quarantine`.

    Raises:
        DataError: as `load_source`.
    """
    if quarantine is not None and bad:
        # before anything is raised: the file then holds all bad rows, the message only the first
        write_quarantine(quarantine, bad)
    share = len(bad) / rows if rows else 0.0
    if not good:
        raise DataError(f"{path}: no usable row (of {rows})" + _listing(bad, quarantine, max_bad_rows))
    if share > (max_bad_rows or 0.0):
        allowed = "" if max_bad_rows is None else f"; data.max_bad_rows allows {max_bad_rows:.2%}"
        raise DataError(f"{path}: {len(bad)} of {rows} rows are bad ({share:.2%}){allowed}" + _listing(bad, quarantine, max_bad_rows))
    # fatal also within the allowed share: statistics, journals and memories are kept by id, and two rows would share them
    repeated = [row for row in bad if row.reason == "duplicate_id"]
    if repeated:
        advice = "; give every row its own id, or set data.dedupe: keep_first if the repeats are identical"
        raise DataError(f"{path}: {len(repeated)} repeated id(s){advice}" + _listing(bad, quarantine, max_bad_rows))
    # fatal too: answers of two data sets do not mean the same
    mixed = [row for row in bad if row.reason == MIXED]
    if mixed:
        raise DataError(f"{path}: {len(mixed)} row(s) of another shape than the first\n  {mixed[0]}\n  split the file by shape")


def write_quarantine(path: Path, bad: list[BadRow]) -> None:
    """Append the rows as JSON lines, except those that are there already (a resumed run reads the same file again)."""
    lines = [
        json.dumps({"file": row.file, "line": row.line, "reason": row.reason, "message": row.message, "excerpt": row.excerpt})
        for row in bad
    ]
    known = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    new = [line for line in lines if line not in known]
    if new:
        from vlmrl import fs

        fs.append(path, "".join(line + "\n" for line in new).encode())
        fs.sync(path)


def bad_row(raw: Raw, error: RowError) -> BadRow:
    """Describe a row that cannot be used."""
    message = str(error).removeprefix(f"{error.reason}: ")
    return BadRow(file=raw.file, line=raw.line, reason=error.reason, message=message, excerpt=raw.excerpt())


def _listing(bad: list[BadRow], quarantine: Path | None, max_bad_rows: float | None) -> str:
    if not bad:
        return ""
    counts = ", ".join(f"{reason} {count}" for reason, count in Counter(row.reason for row in bad).most_common())
    lines = [f"\n  by reason: {counts}", *(f"\n  {row}" for row in bad[:_SHOWN])]
    if len(bad) > _SHOWN:
        lines.append(f"\n  ... and {len(bad) - _SHOWN} more")
    if quarantine is not None:
        lines.append(f"\n  all of them are in {quarantine}")
    return "".join(lines) + "\n  fix or remove these rows" + ("" if max_bad_rows is None else ", or raise data.max_bad_rows")
