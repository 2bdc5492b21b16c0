"""The samples of `data/<name>/`: invented records in the layout of an official download, as the files that the download would have."""

from __future__ import annotations

import importlib.util
import io
import json
import struct
from pathlib import Path
from typing import Any

from tests.support.standins import image_bytes, make_medium
from vlmrl import fs
from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset

STANDIN = "standin:"
"""A text `standin:<name>` in a `.parquet.jsonl` file stands for the bytes of a generated picture."""
SIZES = "standins.json"
"""Beside `sample/`, where the preparation reads the size of pictures: `{path below the download: [width, height]}`."""


def load_dataset(folder: Path) -> Dataset:
    """`DATASET` of the preparation script in `folder`.

    Raises:
        DataError: there is no `prepare.py`, or it states no `DATASET`.
    """
    path = folder / "prepare.py"
    spec = importlib.util.spec_from_file_location(f"prepare_{folder.name}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise DataError(f"{path}: no such script; each folder of data/ has one")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dataset = getattr(module, "DATASET", None)
    if not isinstance(dataset, Dataset):
        raise DataError(f"{path}: states no DATASET")
    return dataset


def unpack(folder: Path, root: Path) -> None:
    """Write the sample of `folder` to `root` as the official download.

    `<name>.parquet.jsonl` becomes the Parquet file `<name>.parquet`, `<name>.p.json` the pickle `<name>.p`; other files are copied.
    Pictures that `standins.json` names are made; files that are there are replaced.

    Raises:
        DataError: there is no sample.
    """
    sample = folder / "sample"
    files = sorted(path for path in sample.rglob("*") if path.is_file())
    if not files:
        raise DataError(f"{sample}: no sample; a fixture needs records in the layout of the download there")
    for path in files:
        target = root / path.relative_to(sample)
        fs.mkdir(target.parent)
        if path.name.endswith(".parquet.jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines()
            fs.write_bytes(target.with_suffix(""), parquet_bytes([json.loads(line) for line in lines]))
        elif path.name.endswith(".p.json"):
            fs.write_bytes(target.with_suffix(""), plain_pickle(json.loads(path.read_text(encoding="utf-8"))))
        else:
            fs.write_bytes(target, path.read_bytes())
    sizes = folder / SIZES
    if sizes.is_file():
        for path, size in json.loads(sizes.read_text(encoding="utf-8")).items():
            make_medium(root, path, "image", {"size": size})


def parquet_bytes(records: list[dict[str, Any]]) -> bytes:
    """A Parquet file of the records, with generated pictures in place of `standin:<name>`."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([_with_bytes(record) for record in records]), buffer)
    return buffer.getvalue()


def _with_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_bytes(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_bytes(inner) for inner in value]
    return image_bytes(value.removeprefix(STANDIN)) if isinstance(value, str) and value.startswith(STANDIN) else value


def plain_pickle(value: Any) -> bytes:
    """A pickle (protocol 2) of dicts, lists, texts, numbers, booleans and None, as `importers.prepare.plain_pickle` reads.

    Raises:
        TypeError: something else is inside, or an integer beyond 32 bits.
    """
    return b"\x80\x02" + _pickled(value) + b"."


def _pickled(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_pickled(key) + _pickled(inner) for key, inner in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(_pickled(inner) for inner in value) + b"e"
    if isinstance(value, str):
        text = value.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, int) and -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    raise TypeError(f"{type(value).__name__} {str(value)[:60]} cannot be in a plain pickle")
