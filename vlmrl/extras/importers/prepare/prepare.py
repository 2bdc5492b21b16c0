"""Shared by every `data/<name>/prepare.py`: the command line, the checks against the card, and writing rows.

A preparation script turns the official download on disk into rows of `data.row`; it never downloads. It states one function
`rows(root, split, **options)` that yields rows, and a `Skipped` for each official record that cannot become a row, so that the
official counts of the card can be checked on what was read and nothing disappears unnamed.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from vlmrl import fs
from vlmrl.data.row import parse_row
from vlmrl.errors import DataError, RowError, VlmrlError

Row = dict[str, Any]

MEDIA = "media"
"""Folder below the output folder for pictures that the official files hold inside."""
_NAMED = 10
_COUNT = re.compile(r"^\|\s*`?([\w.-]+)`?\s*\|\s*([\d,]+|not verified)\b[^|]*\|", re.MULTILINE)
_STRING = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class Skipped:
    """An official record that is not a row, and why. It counts as read."""

    id: str
    reason: str
    unit: object = None
    """Its value of the dataset's counting unit, where that is not the record itself."""
    listed: bool = True
    """Whether its name is worth a line in the list of skipped records; false for records that the task is not about."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """A medium whose bytes are inside an official file. It is written to `<out>/media/<path>`."""

    path: str
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One dataset folder."""

    folder: Path
    """Holds `card.md`; its name is the name of the dataset."""
    rows: Callable[..., Iterator[Row | Skipped]]
    """`rows(root, split, **options)`; media as paths below `root`, or all of them `Embedded`."""
    splits: tuple[str, ...]
    unit: str = ""
    """The key of `meta` whose distinct values the card counts; empty: the card counts records."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Options of `rows` and their values, the default first."""


def main(dataset: Dataset, argv: Sequence[str] | None = None) -> NoReturn:
    """The command line of a preparation script. Exits with the code of the error, or 0."""
    parser = argparse.ArgumentParser(prog=f"data/{dataset.folder.name}/prepare.py", description="Official download on disk -> rows.")
    parser.add_argument("root", type=Path, help="folder of the official download, laid out as card.md says")
    parser.add_argument("out", type=Path, help="folder for <split>.jsonl")
    parser.add_argument("--split", required=True, choices=dataset.splits)
    parser.add_argument(
        "--allow-partial", action="store_true", help="accept other counts than the card's; leave out bad rows and rows without media"
    )
    for name, values in dataset.options.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    given = vars(parser.parse_args(argv))
    options = {name: given[name] for name in dataset.options}
    try:
        done = prepare(dataset, given["root"], given["out"], given["split"], allow_partial=given["allow_partial"], **options)
    except VlmrlError as error:
        parser.exit(error.exit_code, f"{parser.prog}: {error}\n")
    parser.exit(0, f"{done}\n")


def prepare(dataset: Dataset, root: Path, out: Path, split: str, *, allow_partial: bool = False, **options: str) -> str:
    """Write `<out>/<split>.jsonl` and, where records were left out, `<out>/<split>.skipped.jsonl` with their names and reasons.

    Returns what was done, in words.

    Raises:
        DataError: a file of the download is missing or not as expected, an id is repeated, a row is not valid, media are missing, or
            the count is not the card's. With `allow_partial` the last three do not stop it; no rows are written when it stops.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the folder of the official download (see {dataset.folder / 'card.md'})")
    rows: list[Row] = []
    skipped: list[Skipped] = []
    seen: set[object] = set()
    records = 0
    embedded = False
    fs.mkdir(out)
    for record in _named(dataset.rows(root, split, **options), dataset.folder / "card.md"):
        records += 1
        if isinstance(record, Skipped):
            skipped.append(record)
            seen.add(record.unit)
            continue
        row = {"source": dataset.folder.name, **record}
        if dataset.unit:
            seen.add(row["meta"][dataset.unit])
        embedded |= _save_embedded(row, out / MEDIA)
        fault = _fault(row, allow_partial)
        if fault is None:
            rows.append(row)
        else:
            skipped.append(fault)
    _check_ids(rows)
    count = len(seen - {None}) if dataset.unit else records
    note = _check_count(dataset, split, count, allow_partial)
    media_root = out / MEDIA if embedded else root
    rows, absent = _check_media(rows, media_root, allow_partial)
    skipped += absent
    if not rows:
        raise DataError(f"{root}: no row left for split '{split}' of {dataset.folder.name} ({_reasons(skipped) or 'no record read'})")
    target = out / f"{split}.jsonl"
    fs.write_text(target, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    listed = [record for record in skipped if record.listed]
    if listed:
        lines = [json.dumps({"id": record.id, "reason": record.reason}, ensure_ascii=False) for record in listed]
        fs.write_text(out / f"{split}.skipped.jsonl", "".join(f"{line}\n" for line in lines))
    left_out = f"; left out: {_reasons(skipped)}" if skipped else ""
    return f"{target}: {len(rows)} rows{left_out}; {note}; media_root: {media_root}"


def official_counts(card: Path) -> dict[str, int | None]:
    """Split -> count, from the first two columns of the tables of `card.md`; None where the card says 'not verified'."""
    return {
        name: None if count == "not verified" else int(count.replace(",", ""))
        for name, count in _COUNT.findall(card.read_text(encoding="utf-8"))
    }


def _save_embedded(row: Row, folder: Path) -> bool:
    """Write the embedded media of a row and put their paths in their place; whether there were any."""
    found = False
    for key in ("image", "images", "video", "videos"):
        given = row.get(key)
        items = given if isinstance(given, list) else [given]
        for item in items:
            if not isinstance(item, Embedded):
                continue
            found = True
            target = folder / item.path
            if not (target.is_file() and target.read_bytes() == item.data):
                fs.mkdir(target.parent)
                fs.write_bytes(target, item.data)
        if found and given is not None:
            paths = [item.path if isinstance(item, Embedded) else item for item in items]
            row[key] = paths if isinstance(given, list) else paths[0]
    return found


def _named(records: Iterator[Row | Skipped], card: Path) -> Iterator[Row | Skipped]:
    """The records; where reading one fails, the error says after which."""
    last = "the start"
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except (KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise DataError(f"the record after {last} is not as {card} describes it ({what}); is it another version?") from error
        last = f"'{record.id if isinstance(record, Skipped) else record.get('id')}'"
        yield record


def _fault(row: Row, allow_partial: bool) -> Skipped | None:
    """Why the row is not valid, as a record to leave out; None if it is."""
    try:
        parse_row(row, source=str(row.get("id")), media_root="")
    except RowError as error:
        if allow_partial:
            return Skipped(str(row.get("id")), f"not a valid row: {error}")
        raise DataError(
            f"record '{row.get('id')}' does not give a valid row: {error}. Pass --allow-partial to leave out such records"
        ) from error
    return None


def _check_ids(rows: Iterable[Row]) -> None:
    repeated = [name for name, times in Counter(row["id"] for row in rows).items() if times > 1]
    if repeated:
        raise DataError(f"{len(repeated)} id(s) occur more than once: {_some(repeated)}; the official files have repeated records")


def _check_count(dataset: Dataset, split: str, count: int, allow_partial: bool) -> str:
    what = f"{count} {dataset.unit or 'record'}s read"
    card = dataset.folder / "card.md"
    counts = official_counts(card)
    if split not in counts:
        raise DataError(f"{card}: no count for split '{split}'; add a row '| {split} | <count or not verified> |' to its table")
    official = counts[split]
    if official is None:
        return f"{what}, the card has no verified count to compare with"
    if count == official:
        return f"{what}, as the card says"
    if not allow_partial:
        raise DataError(
            f"split '{split}' of {dataset.folder.name}: {what}, but {card} says {official}; the download is not complete or is another "
            "version. Complete it, or pass --allow-partial to go on with what is there"
        )
    return f"{what} of the {official} of the card"


def _check_media(rows: list[Row], root: Path, allow_partial: bool) -> tuple[list[Row], list[Skipped]]:
    """(rows whose media are all there, the others)."""
    exists: dict[str, bool] = {}
    good: list[Row] = []
    absent: list[Skipped] = []
    for row in rows:
        missing = ""
        for path in media_paths(row):
            if path not in exists:
                exists[path] = (root / path).is_file()
            missing = missing or ("" if exists[path] else path)
        if missing:
            absent.append(Skipped(row["id"], f"missing medium {missing}"))
        else:
            good.append(row)
    names = [path for path, there in exists.items() if not there]
    if names and not allow_partial:
        raise DataError(
            f"{len(names)} of {len(exists)} media files are not below {root}: {_some(names)}. Add them, or pass --allow-partial to leave "
            f"out the {len(absent)} row(s) that need them"
        )
    return good, absent


def media_paths(row: Row) -> list[str]:
    """The media of a prepared row, relative to its media root."""
    given: list[Any] = []
    for key in ("image", "images", "video", "videos"):
        value = row.get(key)
        given += value if isinstance(value, list) else [] if value is None else [value]
    return [item["path"] if isinstance(item, dict) else item for item in given]


def _reasons(skipped: Sequence[Skipped]) -> str:
    general = ("missing medium", "not a valid row")
    kinds = Counter(next((kind for kind in general if record.reason.startswith(kind)), record.reason) for record in skipped)
    return ", ".join(f"{count} ({reason})" for reason, count in kinds.most_common())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


# Reading official files.


def official(root: Path, *names: str) -> Path:
    """The first of `names` (paths below `root`, each a way the download is known to be unpacked) that exists.

    Raises:
        DataError: none does.
    """
    for name in names:
        if (root / name).exists():
            return root / name
    raise DataError(f"{root}: not found: {' or '.join(names)}; card.md says how the official download is laid out")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of the lines that are not blank, in strict UTF-8. A line ends at a newline only: JSON may hold U+2028."""
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
            if line.strip():
                yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}); is it still compressed?") from error


def read_json(path: Path) -> Any:
    """The content of a JSON file; `DataError` if it is not one."""
    return _json(path.read_bytes(), str(path))


def read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number from 1, value) of each line; `DataError` at the first that is not JSON."""
    for number, line in read_lines(path):
        yield number, _json(line, f"{path}:{number}")


def _json(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); is the download complete?") from error


def python_strings(text: str) -> list[str]:
    """The texts of a list written as Python source, like `['a', "b's"]`: some Parquet columns hold options so. Nothing is evaluated.

    Raises:
        DataError: it is anything else than a list of plain strings.
    """
    inner = text.strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        raise DataError(f"not a list of texts: {text[:80]!r}")
    found = list(_STRING.finditer(inner))
    if re.fullmatch(r"\[\s*(?:\0\s*(?:,\s*\0\s*)*,?\s*)?\]", _STRING.sub("\0", inner)) is None:
        raise DataError(f"not a list of texts: {text[:80]!r}")
    return [_ESCAPE.sub(_unescaped, match[1] if match[1] is not None else match[2]) for match in found]


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)


# Units and frames: converted here, once.


def grounding_prompt(event: str) -> str:
    """The question for the time span of a described event, white space and a full stop at its end aside.

    After the prompt of TempSamp-R1 (arXiv:2509.18056, appendix E): the event in quotation marks, its precise period, start and end in
    seconds with two decimals, the same example. That the answer is 'start to end' in answer tags is said by the answer format.
    """
    name = " ".join(event.split()).rstrip(". ")
    period = 'determine its precise time period: start and end in seconds with two decimals, for example "12.54 to 17.83".'
    return f'To pinpoint the event "{name}" in the video, {period}'


def time_span(start: float, end: float, duration: float | None = None) -> tuple[float, float] | None:
    """Seconds within the clip; None if nothing is left between them."""
    low, high = max(0.0, float(start)), float(end) if duration is None else min(float(end), float(duration))
    return (low, high) if low < high else None


def xyxy(box: Sequence[float]) -> tuple[float, float, float, float]:
    """Corners of a COCO box (left, top, width, height)."""
    x, y, width, height = (float(value) for value in box)
    return x, y, x + width, y + height


def in_frame(box: Sequence[float], size: tuple[int, int], frame: str) -> list[float] | None:
    """A pixel box (x1, y1, x2, y2) cut to a picture of `size` (width, height), in `frame`, to 2 digits; None if it has no area there.

    Raises:
        ValueError: the frame is neither `pixel` nor `norm1000`.
    """
    if frame not in ("pixel", "norm1000"):
        raise ValueError(f"frame '{frame}' is not known; known: pixel, norm1000")
    width, height = size
    limits = (width, height, width, height)
    cut = [min(max(0.0, float(value)), limit) for value, limit in zip(box, limits, strict=True)]
    scale = [1000 / limit if frame == "norm1000" else 1.0 for limit in limits]
    out = [round(value * factor, 2) for value, factor in zip(cut, scale, strict=True)]
    return out if out[0] < out[2] and out[1] < out[3] else None


def lettered(options: Sequence[str]) -> list[str]:
    """`A. ...`, `B. ...`."""
    return [f"{letter(i)}. {str(option).strip()}" for i, option in enumerate(options)]


def letter(index: int) -> str:
    """0 -> A.

    Raises:
        DataError: there are no more than 26.
    """
    if not 0 <= index < 26:
        raise DataError(f"option number {index} has no letter")
    return chr(ord("A") + index)
