"""Reads CSV and TSV files as rows: the first line names the columns, every cell is text, an empty cell is null.

Cells in quotes may hold delimiters and line breaks; a quote within them is doubled. TSV is read in the same way, with tabs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError

_CELL = 1 << 30
"""Characters of a cell: a column may hold pictures in base64, and the length of a row is limited elsewhere."""


def records(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """(line on which a record begins, names of the columns, its cells) of each record; empty lines are left out.

    Raises:
        DataError: cannot be read, not UTF-8, no header, a column without name or named twice, or quotes that do not close.
    """
    delimiter = "\t" if path.suffix == ".tsv" else ","
    limit = csv.field_size_limit()
    line = 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            names: list[str] | None = None
            while True:
                csv.field_size_limit(_CELL)  # of the whole process, so only while a record is read
                cells = next(reader, None)
                csv.field_size_limit(limit)
                if cells is None:
                    break
                if cells and names is None:
                    names = _header(path, cells, line)
                elif cells and names is not None:
                    yield line, names, cells
                line = reader.line_num + 1
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except csv.Error as error:
        raise DataError(
            f"{path}:{line}: not a whole {'TSV' if delimiter == chr(9) else 'CSV'} record: {error}; is the file complete?"
        ) from error
    finally:
        csv.field_size_limit(limit)
    if names is None:
        raise DataError(f"{path}: is empty; its first line must name the columns")


def _header(path: Path, cells: list[str], line: int) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise DataError(f"{path}:{line}: the column '{twice[0][:40]}' is named twice")
    return names
