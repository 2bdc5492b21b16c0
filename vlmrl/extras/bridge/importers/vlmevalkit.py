"""Reads result tables of VLMEvalKit as records: one row per question with index, question, answer, prediction, and later its scores.

The tables hold neither the version of the program, nor the prompt as sent, nor generation settings, nor token counts. Questions of
circular evaluations stand with an index of their own for each rotation.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError, DataError
from vlmrl.evals.score.paired import UNKNOWN
from vlmrl.extras.bridge.importers.common import Answer, Imported, Origin, joined, number_of
from vlmrl.types import Sample

SCORE_COLUMNS = ("hit", "score", "eval_score", "match")
"""Columns that evaluations of VLMEvalKit write per question."""
FORMATS = (".tsv", ".csv", ".json", ".xlsx")


def import_vlmevalkit(
    path: Path,
    *,
    task: str | None = None,
    model: str | None = None,
    answer_format: str | None = None,
    version: str | None = None,
    samples: Mapping[str, Sample] | None = None,
    scores: Sequence[str] = SCORE_COLUMNS,
) -> Imported:
    """Records of a result table, in its order.

    Args:
        task, model: names; by default both are the file's name, for `<model>_<dataset>` cannot be parted without a list of models.
        answer_format: answer format that the prompt asked for, if one was.
        version: of VLMEvalKit, such as a commit; the table does not say it.
        samples: rows by `index`, to score the answers as ours are.
        scores: columns to keep as upstream scores, where the table has them.

    Raises:
        DataError: not such a table, an index twice, or questions without a row.
        ConfigError: a file format that cannot be read here.
    """
    origin = Origin(
        where=str(path),
        task=task or path.stem,
        model=model or path.stem,
        harness=f"VLMEvalKit {version}" if version else f"{UNKNOWN} version of VLMEvalKit",
        answer_format=answer_format,
    )
    rows = list(_rows(path))
    seen: dict[str, int] = {}
    strange: dict[str, int] = {}
    answers: list[Answer] = []
    for number, row in enumerate(rows, start=1):
        missing = [name for name in ("index", "prediction") if name not in row]
        if missing:
            raise DataError(f"{path}: no column '{missing[0]}'; it has {', '.join(map(str, row))}. Give a result table of VLMEvalKit")
        index = _index(row["index"])
        if index in seen:
            raise DataError(f"{path}: row {number}: index '{index}' is already in row {seen[index]}; remove one of the two")
        seen[index] = number
        answers.append(_answer(index, row, scores, strange))
    notes = [f"{path}: '{name}' is no number in {count} of {len(rows)} rows and is left out there" for name, count in strange.items()]
    return Imported(records=joined(answers, origin, samples), notes=tuple(notes))


def _answer(index: str, row: Mapping[str, Any], scores: Sequence[str], strange: dict[str, int]) -> Answer:
    upstream: dict[str, float] = {}
    for name in scores:
        if name in row:
            number = number_of(row[name])
            if number is None:
                strange[name] = strange.get(name, 0) + 1
            else:
                upstream[name] = number
    thinking = row.get("thinking")  # split off before scoring when SPLIT_THINK is set
    return Answer(
        sample_id=index,
        text=_text(row["prediction"]),
        upstream=upstream,
        target=_text(row["answer"]) if "answer" in row else None,
        thought=bool(_text(thinking).strip()) if "thinking" in row else None,
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _index(value: object) -> str:
    """An index as text; spreadsheets turn whole numbers into 3.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = _text(value).strip()
    return text[:-2] if text.endswith(".0") and text[:-2].isdigit() else text


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    kind = path.suffix.lower()
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if kind in (".tsv", ".csv"):
        return _separated(path, "\t" if kind == ".tsv" else ",")
    if kind == ".json":
        return _json(path)
    if kind == ".xlsx":
        return _sheet(path)
    raise ConfigError(f"{path}: cannot read '{kind}'; give one of {', '.join(FORMATS)}")


def _separated(path: Path, delimiter: str) -> Iterator[dict[str, Any]]:
    before = csv.field_size_limit(sys.maxsize)  # a column may hold pictures in base64
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, delimiter=delimiter), start=1):
                if None in row or None in row.values():
                    raise DataError(f"{path}: row {number} has another number of cells than the header; write the table again")
                yield row
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a table in UTF-8 ({error})") from error
    finally:
        csv.field_size_limit(before)


def _json(path: Path) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise DataError(f"{path}: not a list of objects; give a result table of VLMEvalKit")
    return iter(value)


def _sheet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import openpyxl  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
    except ImportError as error:
        raise ConfigError(f"{path}: reading XLSX needs openpyxl: pip install 'vlmrl[xlsx]', or save the table as TSV or CSV") from error
    book: Any = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        lines = book.worksheets[0].iter_rows(values_only=True)
        header = next(lines, None)
        if header is None:
            raise DataError(f"{path}: its first sheet is empty")
        for cells in lines:
            if any(cell is not None for cell in cells):
                yield {str(name): cell for name, cell in zip(header, cells, strict=False) if name is not None}
    finally:
        book.close()
