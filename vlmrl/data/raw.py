"""Reads the files of a source row by row, unparsed.

rows.jsonl, rows.parquet, rows.csv      one file; also .json (one list), .arrow and .tsv
rows.jsonl#500                          500 of its rows, see `drawn`
folder, folder@train, org/name@train    the files that importers find there; `#500` of them too
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from vlmrl.errors import DataError, RowError
from vlmrl.registry import Catalogue

MAX_LINE = 4_000_000
"""Bytes of the longest row."""
EXCERPT = 200
_DRAW = re.compile(r"(.+)#(\d{1,12})")
_BOM = b"\xef\xbb\xbf"

Format = Literal["jsonl", "json", "parquet", "arrow", "csv", "tsv"]
FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
FILES: dict[str, Format] = {**FORMATS, ".json": "json", ".csv": "csv", ".tsv": "tsv"}
"""With those that are given by name only: in folders such files rather say something about the rows."""
_READERS: Catalogue[Callable[[Path], Iterator[Any]]] = Catalogue("format of rows")
"""Of files that are neither lines nor tables: path -> (line where it begins, what stands there) of each row."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of rows."""

    path: Path
    format: Format


@dataclass(frozen=True, slots=True)
class Container:
    """The files that a source stands for, in order, and how many rows to draw of them together (None: all)."""

    parts: tuple[DataFile, ...]
    draw: int | None = None


_CONTAINERS: Catalogue[Callable[[Path], tuple[DataFile, ...]]] = Catalogue("container of rows")
"""What else a source may be: its path -> the files behind it, in order; DataError where there is nothing of that name."""


def files_of(path: Path) -> Container:
    """Find the files behind the path of a source, and how many rows to draw of them. A file or folder of exactly that name comes first.

    Raises:
        DataError: there is nothing of that name here; says where it was looked for.
    """
    if path.suffix in FILES and path.is_file():
        return Container((DataFile(path, FILES[path.suffix]),))
    match = None if path.exists() else _DRAW.fullmatch(path.name)
    if match is None:
        return Container(_CONTAINERS["folder"](path))
    count = int(match.group(2))
    if count < 1:
        raise DataError(f"{path}: '#{count}' draws no row; give at least #1")
    return Container(files_of(path.with_name(match.group(1))).parts, count)


def drawn(total: int, count: int, name: str) -> frozenset[int]:
    """Choose the rows that `#count` takes, as numbers from 1: those whose SHA-256 of `row <number>` is smallest.

    They are the same on every machine and in every run, `#100` is part of `#200`, and their order stays that of the file.

    Raises:
        DataError: the source has fewer rows.
    """
    if total < count:
        raise DataError(f"{name}: #{count} rows are asked for, it has {total}")
    key = {number: hashlib.sha256(f"row {number}".encode()).digest() for number in range(1, total + 1)}
    # no generator and no seed: growing `count` only adds rows
    return frozenset(heapq.nsmallest(count, key, key=key.__getitem__))


class Raw(NamedTuple):
    """One row before checking: plain data, so that another process can parse it."""

    file: str
    line: int
    form: Literal["line", "half", "long", "cells", "object"]
    """What `content` is: the bytes of a line, of one without end, or of the first part of one that is too long; (names, cells) of a
    delimited record; or the object of a table."""
    content: Any
    offset: int | None = None
    """Where `content` begins in a file of lines, in bytes."""

    def parse(self) -> object:
        """Parse the row to its object.

        Raises:
            RowError: it is no row.
        """
        if self.form == "cells":
            return _parse_cells(*self.content)
        if self.form == "object":
            return _without_nulls(self.content)
        return _parse_line(self.content, self.form != "half", self.form == "long")

    def excerpt(self) -> str:
        """Give its first characters, for messages."""
        if self.form == "cells":
            return _cut(", ".join(self.content[1]).encode())
        if self.form == "object":
            return json.dumps(self.content, default=_shown)[:EXCERPT]
        return _cut(self.content)


def count_rows(path: Path) -> int:
    """Count the rows of a source, good or bad, without parsing them.

    Raises:
        DataError: as `read_source`.
    """
    container = files_of(path)
    return sum(_count(part) for part in container.parts) if container.draw is None else container.draw


def raw_rows(path: Path, blank: Callable[[], None] = lambda: None) -> Iterator[tuple[int, Raw]]:
    """Read each row that the source stands for.

    Args:
        blank: called for each empty line, which is no row.

    Yields:
        (number within the source from 1, row).

    Raises:
        DataError: as `read_source`.
    """
    container, keep = files_of(path), None
    if container.draw is not None:
        # which rows are drawn depends on how many there are, so these files are read twice
        keep = drawn(sum(_count(part) for part in container.parts), container.draw, str(path))
    place = 0
    for part in container.parts:
        for raw in _rows(part, blank):
            place += 1
            if keep is None or place in keep:
                yield place, raw


def _rows(part: DataFile, blank: Callable[[], None]) -> Iterator[Raw]:
    if part.format == "jsonl":
        return _jsonl(part.path, blank)
    if part.format in _READERS:
        return _list(part.path) if part.format == "json" else _delimited(part)
    from vlmrl.data.tables import rows

    objects = enumerate(rows(part.path, part.format == "parquet"), start=1)
    return (Raw(str(part.path), number, "object", obj) for number, obj in objects)


def _count(part: DataFile) -> int:
    """How many rows a file has, without parsing them."""
    if part.format == "jsonl":
        return sum(1 for _ in _jsonl(part.path, lambda: None))
    if part.format in _READERS:
        return sum(1 for _ in _READERS[part.format](part.path))
    from vlmrl.data.tables import batches

    return sum(count for count, _ in batches(part.path, part.format == "parquet"))


def _jsonl(path: Path, blank: Callable[[], None]) -> Iterator[Raw]:
    name = str(path)
    try:
        with path.open("rb") as file:
            number = end = 0
            # bounds memory whatever stands in the file: the longest row with its newline, and one byte more that shows that a line goes on
            while data := file.readline(MAX_LINE + 2):
                number += 1
                whole = data.endswith(b"\n")
                # the rest of a line that is too long is skipped in pieces, and counted: later offsets stay right
                start, length = end, len(data) if whole else len(data) + _skip_line(file)
                end += length
                if number == 1 and data.startswith(_BOM):
                    start, data = len(_BOM), data[len(_BOM) :]
                if not data.strip():
                    blank()
                    continue
                # `- whole`: the newline is no part of the row
                yield _line(name, number, data, whole, too_long=length - whole > MAX_LINE)._replace(offset=start)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _list(path: Path) -> Iterator[Raw]:
    """Rows of a JSON list, each at the line where it begins."""
    for number, text in _READERS["json"](path):
        data = text.encode()
        yield _line(str(path), number, data, True, too_long=len(data) > MAX_LINE)


def _delimited(part: DataFile) -> Iterator[Raw]:
    """Records of a CSV or TSV file, each at the line where it begins."""
    for number, names, cells in _READERS[part.format](part.path):
        yield Raw(str(part.path), number, "cells", (names, cells))


def _line(name: str, number: int, data: bytes, whole: bool, *, too_long: bool) -> Raw:
    # of a line that is too long only the excerpt is kept: a character of UTF-8 has at most 4 bytes
    return Raw(name, number, "long" if too_long else "line" if whole else "half", data[: 4 * EXCERPT] if too_long else data)


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
        # both hooks refuse what `json` would take: it keeps the last of repeated keys in silence, and reads NaN, which is no JSON
        return json.loads(text, object_pairs_hook=_no_repeats, parse_constant=_no_constants)
    except RecursionError as error:
        raise RowError("nesting", "brackets are nested too deeply") from error
    except json.JSONDecodeError as error:
        if not whole:
            raise RowError("half_line", "the last line has no end; the file was probably cut while it was written") from error
        raise RowError("json", f"{error.msg} at character {error.pos}") from error
    # Python converts no integer of more than 4300 digits; a JSONDecodeError is a ValueError too, and was caught above
    except ValueError as error:
        raise RowError("bad_value", f"a number has too many digits: {str(error)[:100]}") from error


def _parse_cells(names: list[str], cells: list[str]) -> dict[str, str | None]:
    """A record as an object. Columns without a name (pandas writes its index so) are left out.

    Raises:
        RowError: `columns`: more or fewer cells than names.
    """
    if len(cells) != len(names):
        raise RowError(
            "columns", f"the record has {len(cells)} cells, the header names {len(names)} columns; is a cell with the delimiter quoted?"
        )
    # a delimited file cannot tell an empty text from a missing value; empty is missing, as null is
    return {name: cell if cell.strip() else None for name, cell in zip(names, cells, strict=True) if name}


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
