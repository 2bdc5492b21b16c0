"""Rows that are Python objects, as a file of rows whose name is their content. A second call with equal rows writes nothing.

Rows are a list of dicts, a `datasets.Dataset`, a pandas DataFrame, or anything else with a length whose items are dicts; also a file, which
stays as it is. Pictures in them (PIL images, arrays, bytes) are written beside the file; paths stay where they are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from vlmrl import fs
from vlmrl.cli.names import extra
from vlmrl.config.schema import SourceSection
from vlmrl.data.embedded import content_of, is_embedded
from vlmrl.data.stored import stored
from vlmrl.errors import ConfigError, DataError, MediaError, RowError, VlmrlError
from vlmrl.extras.python import pictures
from vlmrl.extras.python.pictures import Picture

VERSION = 1
"""Of the files that are written; part of their names."""
MEDIA = "media"
IN_FILES = "pictures"
"""`media_folder` of a file that holds pictures itself, where the call names none."""
_MEDIA_KEYS = {"image", "images", "video", "videos"}
_WITHIN = {"path", "frames"}
"""Keys of a medium that is an object, whose values are paths or pictures."""


@dataclass(frozen=True, slots=True)
class _Located:
    """A path of a medium, as the row gives it."""

    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsFile:
    """Rows as a recipe's source names them."""

    path: str
    media_root: str
    written: bool
    """Whether it was made of objects: line n of it is row n - 1."""
    found: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the source that the rows themselves tell."""
    told: tuple[str, ...] = ()
    """A line for each of these, with what was seen."""

    def source(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """The source of a recipe; `keys` are what the caller says of it."""
        own = {"path": self.path, "media_root": self.media_root}
        own |= {} if self.written else {"media_folder": IN_FILES}
        return own | {k: v for k, v in (*self.found.items(), *keys.items()) if k != "media_root"}

    def looked(self, keys: Mapping[str, Any]) -> RowsFile:
        """The same with what `vlmrl new` would find in the rows beside `keys`. Rows that cannot be read, and keys that a source does not
        take, are left to the check of the recipe.

        Raises:
            ConfigError: the rows leave a choice; names the keys that decide it.
        """
        root = Path(self.media_root) if self.written or keys.get("media_root") else None
        given = {key: value for key, value in keys.items() if key != "media_root"}
        try:
            SourceSection.model_validate({"path": self.path, **given})
        except ValueError:
            return self
        try:
            found, told = extra("vlmrl.extras.starter.source.source_of")(self.path, given, media_root=root)
        except DataError:
            return self
        media = str(found.pop("media_root", self.media_root))
        return replace(self, media_root=media, found={k: v for k, v in found.items() if k not in keys}, told=tuple(told))

    def by_row(self, text: str) -> str:
        """A message with the numbers of rows in place of the lines of the file that was written."""
        if not self.written:
            return text
        names = "|".join(re.escape(name) for name in (os.path.abspath(self.path), self.path))
        return re.sub(rf"(?:{names}):([1-9]\d*)", lambda found: f"row {int(found[1]) - 1}", text)


@contextmanager
def said_by_row(*files: RowsFile | None) -> Iterator[None]:
    """Errors within name rows by their number in what was given, counted from 0."""

    def of(text: str) -> str:
        for file in files:
            text = text if file is None else file.by_row(text)
        return text

    try:
        yield
    except ConfigError as error:
        error.problems = [of(problem) for problem in error.problems]
        error.args = ("\n".join(error.problems),)
        raise
    except VlmrlError as error:
        error.args = (of(str(error)),)
        raise


def given(rows: Any, folder: Path, keys: Mapping[str, Any] | None = None) -> RowsFile:
    """The file of rows that were given as a file or as objects.

    Args:
        rows: see the module.
        folder: rows that are objects get a folder of their own below it, named by their content.
        keys: what the caller says of the source; `columns` says which columns hold media, `media_root` where their paths begin.

    Raises:
        DataError: a row cannot be written; names its number, from 0, and the column.
        ConfigError: these are no rows.
    """
    keys = keys or {}
    if isinstance(rows, str | PurePath):
        there = os.path.exists(re.split("[#@]", str(rows))[0])  # else it is the name of a data set, or will be refused when it is read
        root = keys.get("media_root") or (os.path.dirname(str(rows)) if there else "") or "."
        return RowsFile(path=str(rows), media_root=str(root), written=False)
    reader = _Reader(keys)
    records, absent = _records(rows)
    seal = hashlib.sha256(f"rows {VERSION}".encode())
    for number in range(len(records)):
        seal.update(_text(reader.row(number, records[number], absent), _mark, sort_keys=True).encode() + b"\n")
    if reader.located:
        seal.update(os.path.relpath(reader.base, folder.absolute()).encode())
    name = seal.hexdigest()
    own = folder / f"rows-{name[:16]}"
    file = own / f"rows-{name[:8]}.jsonl"
    root = reader.root(own.absolute())
    if not file.exists():
        _write(file, reader, records, absent, root)
    return RowsFile(path=_short(file.absolute()), media_root=_short(root), written=True)


def _write(file: Path, reader: _Reader, records: Sequence[Any], absent: bool, root: Path) -> None:
    """Pictures first, each once; the file last, so that one that is there is whole."""
    lines: list[str] = []
    own = file.parent.absolute()
    for number in range(len(records)):

        def made(value: object, number: int = number) -> object:
            if isinstance(value, _Located):
                return os.path.relpath(reader.absolute(value.path), root)
            assert isinstance(value, Picture)
            try:
                kept = stored({"bytes": value.content()}, root=own, folder=MEDIA, place=value.place)
            except RowError as error:
                raise DataError(f"row {number}: {error}") from error
            return kept | {"path": os.path.relpath(own / kept["path"], root)}

        lines.append(_text(reader.row(number, records[number], absent), made))
    fs.mkdir(own)
    fs.write_text(file, "".join(f"{line}\n" for line in lines))


def _text(row: Mapping[str, Any], made: Any, **how: Any) -> str:
    return json.dumps(row, default=made, allow_nan=False, **how)


def _mark(value: object) -> object:
    """What stands for a medium in the digest of rows."""
    return {"picture": value.digest} if isinstance(value, Picture) else {"at": value.path} if isinstance(value, _Located) else value


def _short(path: Path) -> str:
    """Relative to the working folder where it lies below it, so that a project can be moved."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _records(rows: Any) -> tuple[Sequence[Any], bool]:
    """(rows by their number, whether NaN stands for a cell without a value).

    Raises:
        ConfigError: these are no rows, or none.
    """
    if hasattr(rows, "to_dict") and hasattr(rows, "columns") and not isinstance(rows, Mapping):
        rows, absent = rows.to_dict(orient="records"), True
    else:
        rows, absent = _undecoded(rows) if hasattr(rows, "cast_column") else rows, False
    what = f"rows: a {type(rows).__name__} is not taken"
    if isinstance(rows, Mapping):
        raise ConfigError(f"{what}; give one of its splits, as rows['train'], or a list with a dict for each row")
    if isinstance(rows, bytes) or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise ConfigError(f"{what}: rows have a length and come in a fixed order; give a list of dicts, a Dataset, a DataFrame or a file")
    if not len(rows):
        raise ConfigError("rows: there are none")
    return rows, absent


def _undecoded(rows: Any) -> Any:
    """A `Dataset` whose media stay the bytes of their files: nothing is decoded and coded again."""
    for name, feature in (getattr(rows, "features", None) or {}).items():
        plain = _plain_feature(feature)
        if plain is not None:
            rows = rows.cast_column(name, plain)
    return rows


def _plain_feature(feature: Any) -> Any:
    """A feature of media, or a list of such, with `decode=False`; None for any other."""
    if isinstance(feature, list):
        inner = _plain_feature(feature[0]) if feature else None
        return None if inner is None else [inner]
    if getattr(feature, "decode", None) is True:
        return type(feature)(decode=False)
    inner = _plain_feature(feature.feature) if hasattr(feature, "feature") else None
    return None if inner is None else type(feature)(inner)


class _Reader:
    """Makes plain values of rows, and remembers where media lie that are paths."""

    def __init__(self, keys: Mapping[str, Any]):
        self.base = os.path.abspath(keys.get("media_root") or ".")
        """Folder that relative paths begin at."""
        self.located: set[str] = set()
        """Folders of media that are paths."""
        self.drawn = False
        """Whether there are pictures that are objects."""
        self._wanted = os.path.abspath(keys["media_root"]) if keys.get("media_root") else None
        columns: Mapping[str, Any] = keys.get("columns") or {}
        named = [value for key, value in columns.items() if key in _MEDIA_KEYS]
        self._mapped = {str(one).split(".")[0] for value in named for one in ([value] if isinstance(value, str) else value)}

    def absolute(self, path: str) -> str:
        """A path of a medium from the root of the file system."""
        return os.path.normpath(os.path.join(self.base, os.path.expanduser(path)))

    def root(self, own: Path) -> Path:
        """The folder that all media lie below."""
        if self._wanted is not None and not self.drawn and all(Path(one).is_relative_to(self._wanted) for one in self.located):
            return Path(self._wanted)
        return Path(os.path.commonpath([*self.located, *([str(own)] if self.drawn or not self.located else [])]))

    def row(self, number: int, row: object, absent: bool) -> dict[str, Any]:
        """A row with plain values, pictures and paths of media."""
        if not isinstance(row, Mapping):
            raise DataError(f"row {number}: a dict is expected, got {type(row).__name__} {row!r:.60}")
        out: dict[str, Any] = {}
        for column, value in row.items():
            if not isinstance(column, str):
                raise DataError(f"row {number}: the name of a column must be text, got {type(column).__name__} {column!r:.60}")
            if absent and (type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value))):
                continue
            media = column in _MEDIA_KEYS or column in self._mapped
            try:
                plain = self._value(value, column, media)
            except (ValueError, MediaError, RowError) as error:
                raise DataError(f"row {number}, column '{column}': {error}") from error
            if plain is not None:
                out[column] = plain
        return out

    def _value(self, value: Any, place: str, media: bool) -> Any:
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, str):
            return self._written(value, place, media)
        if isinstance(value, PurePath):
            return self._at(str(value))
        if isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError(f"'{place}' is {value}, which no row can hold")
            return float(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return self._picture(pictures.of_bytes(bytes(value), place))
        if isinstance(value, Mapping):
            return self._object(value, place, media)
        if isinstance(value, list | tuple):
            return [self._value(one, f"{place}[{i}]", media) for i, one in enumerate(value)]
        if isinstance(value, np.generic):
            return self._value(value.item(), place, media)
        picture = None if isinstance(value, np.ndarray) and not media else pictures.of_object(value, place)
        if picture is not None:
            return self._picture(picture)
        if hasattr(value, "tolist") and not media:
            return self._value(value.tolist(), place, media)
        raise ValueError(
            f"a {type(value).__name__} is not taken; give text, numbers, lists and dicts, and media as PIL image, array or path"
        )

    def _written(self, value: str, place: str, media: bool) -> Any:
        """A text: a medium's path or content where a medium is expected."""
        if media and is_embedded(value):
            return self._picture(pictures.of_bytes(content_of(value, place), place))
        return self._at(value) if media and value and "://" not in value else value

    def _object(self, value: Mapping[Any, Any], place: str, media: bool) -> Any:
        if value.get("bytes") is not None and set(value) <= {"bytes", "path"}:
            return self._value(value["bytes"], f"{place}.bytes", media)
        if set(value) == {"bytes", "path"} and value["path"] is not None:
            return self._at(str(value["path"]))
        out = {str(k): self._value(v, f"{place}.{k}", k in _MEDIA_KEYS or (media and k in _WITHIN)) for k, v in value.items()}
        return {key: plain for key, plain in out.items() if plain is not None}

    def _picture(self, picture: Picture) -> Picture:
        self.drawn = True
        return picture

    def _at(self, path: str) -> _Located:
        self.located.add(os.path.dirname(self.absolute(path)))
        return _Located(path)
