"""Writes official content in the columns of another download of it: Parquet with stand-in pictures; reads the sheets it may come in."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as parquet

from tests.support.standins import image_bytes

PICTURE = {"bytes": image_bytes("poured.png"), "path": None}
"""A picture column's value where the pictures are not in the repository."""
_SPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def read(path: Path) -> Any:
    """The content of a JSON file, or the list of the lines of a `.jsonl` file."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()] if path.suffix == ".jsonl" else json.loads(text)


def write_parquet(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Columns are the keys of the records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(list(records)), path)


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def sheet(path: Path) -> list[dict[str, str]]:
    """Rows of the first sheet of an `.xlsx` file as texts, by the names in its first row; empty cells are left out."""
    with zipfile.ZipFile(path) as archive:
        shared: list[str] = []
        if "xl/sharedStrings.xml" in archive.namelist():
            shared = ["".join(item.itertext()) for item in ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))]
        root = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    table: list[dict[str, str]] = []
    for row in root.iter(f"{_SPACE}row"):
        cells: dict[str, str] = {}
        for cell in row.iter(f"{_SPACE}c"):
            text = "".join(cell.itertext())
            if text:
                column = re.sub(r"\d", "", cell.attrib["r"])
                cells[column] = shared[int(text)] if cell.attrib.get("t") == "s" else text
        table.append(cells)
    names = table[0]
    return [{names[column]: text for column, text in cells.items()} for cells in table[1:]]
