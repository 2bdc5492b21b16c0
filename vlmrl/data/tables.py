"""Reads Parquet and Arrow files in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vlmrl.errors import DataError

_BATCH = 256
"""Rows that are Python objects at a time."""


def rows(path: Path, parquet: bool) -> Iterator[dict[str, Any]]:
    """Read the rows of a Parquet or Arrow file."""
    for _, batch in batches(path, parquet):
        yield from batch()


def batches(path: Path, parquet: bool) -> Iterator[tuple[int, Callable[[], list[dict[str, Any]]]]]:
    """Read a file in batches of at most 256 rows.

    Yields:
        (number of rows, function that makes them Python objects); counting rows does not call it.

    Raises:
        DataError: pyarrow is not installed, or the file is damaged.
    """
    kind = "Parquet" if parquet else "Arrow"
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{path}: reading {kind} needs pyarrow; `pip install pyarrow`, or convert the file to .jsonl") from error
    number = 0
    try:
        if parquet:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_BATCH):
                    yield batch.num_rows, batch.to_pylist
                    number += batch.num_rows
            return
        # the stream format, in which `datasets` saves its .arrow files, not the file format with an index at its end
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
            for whole in stream:
                # batches of a stream are as large as their writer made them
                for start in range(0, whole.num_rows, _BATCH):
                    batch = whole.slice(start, _BATCH)
                    yield batch.num_rows, batch.to_pylist
                    number += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: damaged or not {'a Parquet' if kind == 'Parquet' else 'an Arrow'} file, after row {number}: {str(error)[:200]}"
        ) from error
