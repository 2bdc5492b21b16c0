"""Loads files of rows as samples. A bad row is counted with file, line and reason, never skipped in silence and never fatal by itself;
what is fatal is too many of them.

JSONL is read as strict UTF-8 (a byte order mark at the start is allowed), one object per line, without the liberties of Python's
`json`: repeated keys, `NaN` and endless numbers are errors.

What a source may be besides one file is in `data.containers`; rows of other trainers are converted by `data.adapters` before they
are checked.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from vlmrl import fs
from vlmrl.data.adapters import MIXED, Importer, ImportOptions
from vlmrl.data.containers import Container, Part, drawn, resolve, stored
from vlmrl.data.delimited import records, row_of
from vlmrl.data.json_array import elements
from vlmrl.data.row import parse_row
from vlmrl.errors import DataError, RowError
from vlmrl.types import Sample

Dedupe = Literal["error", "keep_first"]

MAX_LINE = 4_000_000
"""Bytes of the longest row."""
EXCERPT = 200
_BOM = b"\xef\xbb\xbf"
_SHOWN = 5
_BATCH = 256
"""Rows of a table that are Python objects at a time."""


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

    @property
    def rows(self) -> int:
        return len(self.samples) + len(self.bad) + self.duplicates

    def reasons(self) -> dict[str, int]:
        """Bad rows by reason, most frequent first."""
        return dict(Counter(row.reason for row in self.bad).most_common())


@dataclass(frozen=True, slots=True)
class _Raw:
    """One row before checking. `parse` returns its object or raises `RowError`."""

    file: Path
    line: int
    parse: Callable[[], object]
    excerpt: Callable[[], str]


def read_source(path: Path, *, media_root: str, dedupe: Dedupe = "error", options: ImportOptions | None = None) -> SourceReport:
    """Read and check every row of a source (`containers.resolve` says what that may be). Bad content never raises; it is in the report.

    A repeated id is a bad row (`duplicate_id`), except that `keep_first` drops and counts repeats of the same content.

    Args:
        options: how rows of other trainers become ours; None takes rows of our own schema only.

    Raises:
        DataError: the file is missing or unreadable, has another suffix, needs pyarrow which is not installed, has fewer rows than are
            to be drawn, the adapter does not exist, or `columns` names what there is not.
    """
    report = SourceReport()
    importer = None if options is None else Importer(options)
    seen: dict[str, tuple[str, bytes]] = {}
    for place, raw in _chosen(resolve(path), path, report):
        where = f"{raw.file}:{raw.line}"
        try:
            obj = raw.parse()
            if importer is not None:
                media = stored(importer.opened(obj), root=importer.options.media_dir, folder=importer.options.media_folder)
                found = importer.rows(media, where=where, place=place)
            else:
                found = [obj]
        except RowError as error:
            report.bad.append(_bad(raw, error))
            continue
        for obj in found:
            try:
                sample = parse_row(obj, source=where, media_root=media_root)
                content = hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).digest()
                if sample.id not in seen:
                    seen[sample.id] = (where, content)
                    report.samples.append(sample)
                elif seen[sample.id][1] == content and dedupe == "keep_first":
                    report.duplicates += 1
                else:
                    raise _duplicate(sample, seen[sample.id], content)
            except RowError as error:
                report.bad.append(_bad(raw, error))
    if importer is not None:
        problem = importer.missing()
        if problem is not None:
            raise DataError(f"{path}: {problem}")
        report.shape, report.note = importer.chosen, importer.note()
    return report


def load_source(
    path: Path,
    *,
    media_root: str,
    dedupe: Dedupe,
    max_bad_rows: float,
    quarantine: Path | None,
    options: ImportOptions | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Sample]:
    """The good rows of a source, in the order of the file. Bad rows are added to `quarantine` as JSON lines, each once.

    Args:
        options: as `read_source`.
        say: gets the line that tells which foreign shape was detected.

    Raises:
        DataError: the share of bad rows is above `max_bad_rows`, there is no good row, an id is repeated (see `read_source`;
            statistics are kept by id), rows have several shapes, or the file cannot be read.
    """
    report = read_source(path, media_root=media_root, dedupe=dedupe, options=options)
    if say is not None and report.note is not None:
        say(report.note)
    if quarantine is not None and report.bad:
        write_quarantine(quarantine, report.bad)
    share = len(report.bad) / report.rows if report.rows else 0.0
    if not report.samples:
        raise DataError(f"{path}: no usable row (of {report.rows})" + _listing(report, quarantine))
    if share > max_bad_rows:
        head = f"{path}: {len(report.bad)} of {report.rows} rows are bad ({share:.2%}); data.max_bad_rows allows {max_bad_rows:.2%}"
        raise DataError(head + _listing(report, quarantine))
    repeated = [row for row in report.bad if row.reason == "duplicate_id"]
    if repeated:
        advice = "; give every row its own id, or set data.dedupe: keep_first if the repeats are identical"
        raise DataError(f"{path}: {len(repeated)} repeated id(s){advice}" + _listing(report, quarantine))
    mixed = [row for row in report.bad if row.reason == MIXED]
    if mixed:
        raise DataError(f"{path}: {len(mixed)} row(s) of another shape than the first\n  {mixed[0]}\n  split the file by shape")
    return report.samples


def write_quarantine(path: Path, bad: list[BadRow]) -> None:
    """Append the rows as JSON lines, except those that are there already (a resumed run reads the same file again)."""
    lines = [
        json.dumps({"file": row.file, "line": row.line, "reason": row.reason, "message": row.message, "excerpt": row.excerpt})
        for row in bad
    ]
    known = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    new = [line for line in lines if line not in known]
    if new:
        fs.append(path, "".join(line + "\n" for line in new).encode())
        fs.sync(path)


def _bad(raw: _Raw, error: RowError) -> BadRow:
    message = str(error).removeprefix(f"{error.reason}: ")
    return BadRow(file=str(raw.file), line=raw.line, reason=error.reason, message=message, excerpt=raw.excerpt())


def _duplicate(sample: Sample, first: tuple[str, bytes], content: bytes) -> RowError:
    how = "the same" if first[1] == content else "different"
    return RowError("duplicate_id", f"id {sample.id[:100]!r} at {sample.source} is already at {first[0]}, with {how} content")


def _listing(report: SourceReport, quarantine: Path | None) -> str:
    if not report.bad:
        return ""
    counts = ", ".join(f"{reason} {count}" for reason, count in report.reasons().items())
    lines = [f"\n  by reason: {counts}", *(f"\n  {row}" for row in report.bad[:_SHOWN])]
    if len(report.bad) > _SHOWN:
        lines.append(f"\n  ... and {len(report.bad) - _SHOWN} more")
    if quarantine is not None:
        lines.append(f"\n  all of them are in {quarantine}")
    return "".join(lines) + "\n  fix or remove these rows, or raise data.max_bad_rows"


def _chosen(container: Container, path: Path, report: SourceReport) -> Iterator[tuple[int, _Raw]]:
    """(number within the source from 1, row) of each row that the source stands for."""
    keep = None
    if container.draw is not None:
        keep = drawn(sum(_count(part) for part in container.parts), container.draw, str(path))
    place = 0
    for part in container.parts:
        for raw in _rows(part, report):
            place += 1
            if keep is None or place in keep:
                yield place, raw


def _rows(part: Part, report: SourceReport) -> Iterator[_Raw]:
    if part.format == "json":
        return _list(part.path)
    if part.format in ("csv", "tsv"):
        return _delimited(part.path)
    return _jsonl(part.path, report) if part.format == "jsonl" else _table(part)


def _count(part: Part) -> int:
    """How many rows a file has, without parsing them."""
    if part.format == "jsonl":
        return sum(1 for _ in _jsonl(part.path, SourceReport()))
    if part.format == "json":
        return sum(1 for _ in elements(part.path))
    if part.format in ("csv", "tsv"):
        return sum(1 for _ in records(part.path))
    return sum(count for count, _ in _batches(part))


def _jsonl(path: Path, report: SourceReport) -> Iterator[_Raw]:
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(MAX_LINE + 2):
                number += 1
                whole = data.endswith(b"\n")
                length = len(data) if whole else len(data) + _skip_line(file)
                if number == 1:
                    data = data.removeprefix(_BOM)
                if not data.strip():
                    report.blank += 1
                    continue
                yield _line(path, number, data, whole, too_long=length - whole > MAX_LINE)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _list(path: Path) -> Iterator[_Raw]:
    """Rows of a JSON list, each at the line where it begins."""
    for number, text in elements(path):
        data = text.encode()
        yield _line(path, number, data, True, too_long=len(data) > MAX_LINE)


def _delimited(path: Path) -> Iterator[_Raw]:
    """Records of a CSV or TSV file, each at the line where it begins."""
    for number, names, cells in records(path):
        yield _Raw(path, number, lambda names=names, cells=cells: row_of(names, cells), lambda cells=cells: _cut(", ".join(cells).encode()))


def _line(path: Path, number: int, data: bytes, whole: bool, *, too_long: bool) -> _Raw:
    return _Raw(path, number, lambda: _parse_line(data, whole, too_long), lambda: _cut(data))


def _skip_line(file: BinaryIO) -> int:
    """Read on to the end of the line in pieces; how many bytes that were."""
    skipped = 0
    while piece := file.readline(1 << 20):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _parse_line(data: bytes, whole: bool, too_long: bool) -> object:
    if too_long:
        raise RowError("too_long", f"the line is longer than {MAX_LINE} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError("encoding", f"not UTF-8: byte {data[error.start]:#04x} at position {error.start}") from error
    try:
        return json.loads(text, object_pairs_hook=_no_repeats, parse_constant=_no_constants)
    except RecursionError as error:
        raise RowError("nesting", "brackets are nested too deeply") from error
    except json.JSONDecodeError as error:
        if not whole:
            raise RowError("half_line", "the last line has no end; the file was probably cut while it was written") from error
        raise RowError("json", f"{error.msg} at character {error.pos}") from error
    except ValueError as error:
        raise RowError("bad_value", f"a number has too many digits: {str(error)[:100]}") from error


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise RowError("duplicate_key", f"key {repeated[:60]!r} is given twice in one object")
    return out


def _no_constants(name: str) -> float:
    raise RowError("not_finite", f"{name} is not a JSON value")


def _cut(data: bytes) -> str:
    return data[: 4 * EXCERPT].decode("utf-8", "replace").strip()[:EXCERPT]


def _table(part: Part) -> Iterator[_Raw]:
    """Rows of a Parquet or Arrow file."""
    number = 0
    for _, batch in _batches(part):
        for obj in batch():
            number += 1
            yield _Raw(part.path, number, lambda obj=obj: _without_nulls(obj), lambda obj=obj: json.dumps(obj, default=_shown)[:EXCERPT])


def _batches(part: Part) -> Iterator[tuple[int, Callable[[], list[dict[str, Any]]]]]:
    """(number of rows, the rows) of at most 256 rows at a time.

    Raises:
        DataError: pyarrow is not installed, or the file is damaged.
    """
    path, kind = part.path, "Parquet" if part.format == "parquet" else "Arrow"
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{path}: reading {kind} needs pyarrow; `pip install pyarrow`, or convert the file to .jsonl") from error
    number = 0
    try:
        if part.format == "parquet":
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_BATCH):
                    yield batch.num_rows, batch.to_pylist
                    number += batch.num_rows
            return
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
            for whole in stream:
                for start in range(0, whole.num_rows, _BATCH):
                    batch = whole.slice(start, _BATCH)
                    yield batch.num_rows, batch.to_pylist
                    number += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: damaged or not {'a Parquet' if kind == 'Parquet' else 'an Arrow'} file, after row {number}: {str(error)[:200]}"
        ) from error


def _shown(value: object) -> str:
    """What an excerpt shows of a value that JSON does not have."""
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else str(value)


def _without_nulls(value: Any) -> Any:
    """Parquet gives every object of a column the same keys; those without a value were not in the row."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value
