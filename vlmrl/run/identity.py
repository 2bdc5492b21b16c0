"""What a run was begun with and has made, by content: base model, rows of every source, exported folders, evaluation records.

`identity.json` in the run directory is sealed with a digest, and every checkpoint holds a copy. A start compares it with what is there
before anything is trained, so that a run never goes on with another model, other rows or a damaged export without a word.

Rows are kept as `inputs/rows-<source>.bin`, 32 bytes for each: eight bytes of a hash of its id, question, gold answer and media (paths and
sizes of the files), so that a message can name the row and what changed of it. The content of media is compared when they are
used (`train.state.UsedMedia`): hashing every video at every start would take hours.

Only rank 0 has a file; what is here is called there alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.errors import CheckpointError
from vlmrl.train.manifest import DamagedError, read_sealed, sealed, sha256, sha256_of
from vlmrl.types import Sample, digest, gold_of

FILE = "identity.json"
FOLDER = "inputs"
SCHEMA = 1
PARTS = ("id", "question", "gold answer", "media")
_PART = 8
_ROW = _PART * len(PARTS)
_SHOWN = 5
_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf")
"""Weights in formats that are never loaded."""

Say = Callable[[str], None]


@dataclass(kw_only=True)
class Identity:
    """See the module docstring. Everything in it is plain JSON."""

    folder: Path
    """The run's directory."""
    model: dict[str, str] | None = None
    """File of the base model -> sha256; None where it is not known yet."""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Source and answer format -> what was there: `source`, `count`, `sha256` of the file of hashes."""
    exports: dict[str, str] = field(default_factory=dict[str, str])
    """Exported folder, relative to the run -> digest of its manifest."""
    records: list[list[Any]] = field(default_factory=list[list[Any]])
    """[file of evaluation records relative to the run, its size, its sha256], in the order of evaluation."""

    @staticmethod
    def open(folder: Path, copy: Mapping[str, Any] | None, say: Say) -> Identity:
        """Read the file of a run; where it is damaged or gone, the copy of the last checkpoint.

        Raises:
            CheckpointError: it was written by a newer version.
        """
        try:
            body: Mapping[str, Any] | None = read_sealed(folder, FILE)
        except DamagedError as error:
            body = copy
            if copy is not None:
                say(f"{folder / FILE}: {str(error).removeprefix(f'{FILE}: ')}; what the last checkpoint knows is taken instead")
        if body is None:
            return Identity(folder=folder)
        if body["schema"] > SCHEMA:
            raise CheckpointError(
                f"{folder / FILE}: written with schema {body['schema']}, this version reads up to {SCHEMA}; upgrade vlmrl"
            )
        known = {name: body[name] for name in ("model", "rows", "exports", "records")}
        return Identity(folder=folder, **known)

    def body(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {"schema": SCHEMA, "model": self.model, "rows": self.rows, "exports": self.exports, "records": self.records}

    def write(self) -> None:
        """Make it durable. Nothing is written where nothing changed."""
        raw = sealed(self.body())
        path = self.folder / FILE
        if not path.exists() or path.read_bytes() != raw:
            fs.write_bytes(path, raw)

    # ---- the model that the recipe starts from -----------------------------------------------------------------------------

    def check_model(self, path: str, folder: Path | None) -> None:
        """Compare the base model with the one that the run began with, or remember it. `folder`: where its files are.

        Raises:
            CheckpointError: a file differs.
        """
        if folder is None:
            return
        now = model_files(folder)
        if self.model is None:
            self.model = now
            self.write()
        different = sorted(name for name in set(now) | set(self.model) if now.get(name) != self.model.get(name))
        if different:
            what = ", ".join(f"{folder / name} {_how(name, self.model, now)}" for name in different[:_SHOWN])
            raise CheckpointError(
                f"model.path: '{path}' is not the model that the run began with: {what}; put it back, or choose another run.name"
            )

    # ---- rows ----------------------------------------------------------------------------------------------------------------

    def check_rows(self, source: str, key: Sequence[Any], rows: SourceRows, *, accept: bool, note: Say) -> None:
        """Compare the rows of a source with those that the run began with, or remember them.

        Args:
            source: its name, for messages.
            key: what else makes it another source (answer format, options); JSON values.
            accept: go on with rows whose content changed, and `note` which.

        Raises:
            CheckpointError: rows differ, and are named with what differs of them; or the file of their hashes is damaged.
        """
        name = digest([source, *key])[:16]
        path = self.folder / FOLDER / f"rows-{name}.bin"
        now = rows.hashes()
        known = self.rows.get(name)
        if known is not None:
            before = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(before).hexdigest() != known["sha256"]:
                raise CheckpointError(
                    f"{path}: missing, or its content differs from {FILE}: the rows of {source} cannot be compared; restore it, or choose "
                    "another run.name"
                )
            if before == now:
                return
            _refuse_other_rows(source, before, now, rows)
            changed = _changed(before, now, rows.samples)
            if not accept:
                listed = "".join(f"\n  {line}" for line in _short(changed))
                raise CheckpointError(
                    f"{source}: {len(changed)} of {len(rows.samples)} rows changed since the run began:{listed}\n"
                    "  put the data back, or choose another run.name; data.changed: accept goes on with the rows as they are now"
                )
            for line in _short(changed):
                note(f"data.changed: accept: {source}: {line}")
        fs.mkdir(path.parent)
        fs.write_bytes(path, now)
        self.rows[name] = {"source": source, "count": len(rows.samples), "sha256": hashlib.sha256(now).hexdigest()}
        self.write()

    # ---- what the run has made ---------------------------------------------------------------------------------------------

    def made(self, folder: Path, seal: str) -> None:
        """Remember an exported folder by the digest of its manifest."""
        self.exports[self._name(folder)] = seal
        self.write()

    def forget(self, path: Path) -> None:
        """An export or a file of records that is about to be written again, or that is given up."""
        name = self._name(path)
        self.exports.pop(name, None)
        self.records = [entry for entry in self.records if entry[0] != name]
        self.write()

    def evaluated(self, files: Sequence[Path]) -> None:
        """Remember files of evaluation records as they are now."""
        names = [self._name(path) for path in files]
        kept = {entry[0]: entry for entry in self.records}
        for name, path in zip(names, files, strict=True):
            kept[name] = [name, path.stat().st_size, sha256(path)]  # in the place of a former one, else at the end
        self.records = list(kept.values())
        self.write()

    def damaged_records(self) -> dict[Path, str]:
        """Files of evaluation records that are not as they were written, with what is wrong."""
        out: dict[Path, str] = {}
        for name, size, content in self.records:
            path = self.folder / name
            if not path.is_file():
                out[path] = "missing"
            elif path.stat().st_size != size or sha256(path) != content:
                out[path] = f"content differs from its sha256 in {FILE}"
        return out

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


@dataclass(frozen=True, kw_only=True)
class SourceRows:
    """The rows of a source in their order."""

    samples: Sequence[Sample]
    root: Callable[[Sample], Path]
    """Folder that a row's media are relative to."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Id of a row that cannot be used -> where it is and why."""
    known: bytes | None = None
    """Their hashes, where an audit has made them."""

    def hashes(self) -> bytes:
        """32 bytes per row: id, question, gold answer, media."""
        if self.known is not None:
            return self.known
        encode = json.JSONEncoder(sort_keys=True, default=dict, separators=(",", ":")).encode
        first = {sample.media_root: sample for sample in self.samples}
        roots = {name: str(self.root(sample)) for name, sample in first.items()}
        out = bytearray()
        for sample in self.samples:
            root = roots[sample.media_root]
            media = [f"{ref.kind} {ref.path} {ref.sha256} {_size(f'{root}/{ref.path}')}" for ref in sample.media]
            for text in (sample.id, f"{sample.question_first} {sample.question}", encode(gold_of(sample)), "\n".join(media)):
                out += _hash(text)
        return bytes(out)


def model_files(folder: Path) -> dict[str, str]:
    """Hashes of the files of a model folder that may be read: those at its top, without weights in other formats and hidden files."""
    found = [p for p in sorted(folder.iterdir()) if p.is_file() and not p.name.startswith(".") and p.suffix.lower() not in _WEIGHTS]
    hashes = sha256_of(found)
    return {path.name: hashes[path] for path in found}


def _refuse_other_rows(source: str, before: bytes, now: bytes, rows: SourceRows) -> None:
    """Rows that were added, removed or moved: plans and samplers count on their order, so nothing can accept them."""
    old, new = _column(before, 0), _column(now, 0)
    if old == new:
        return
    place = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    where = f"{source}: {len(old)} rows when the run began, {len(new)} now"
    gone = {_hash(name): name for name in rows.left_out}
    lost = next((gone[value] for value in old if value in gone), None)
    if lost is not None:
        where += f"; row '{lost}' was used then and cannot be used now: {rows.left_out[lost]}"
    elif place < len(new):
        sample = rows.samples[place]
        was = "was not there" if new[place] not in old else f"was number {old.index(new[place]) + 1}"
        where += f"; number {place + 1} is row '{sample.id}' ({sample.source}), which {was}"
    else:
        where += f"; those from number {place + 1} on are gone"
    raise CheckpointError(f"{where}; put the data back, or choose another run.name")


def _changed(before: bytes, now: bytes, samples: Sequence[Sample]) -> list[str]:
    """A line for every row whose content changed."""
    out: list[str] = []
    for place, sample in enumerate(samples):
        start = place * _ROW
        if before[start : start + _ROW] != now[start : start + _ROW]:
            cells = [slice(start + i * _PART, start + (i + 1) * _PART) for i in range(len(PARTS))]
            parts = [name for name, cell in zip(PARTS, cells, strict=True) if before[cell] != now[cell]]
            media = f" ({', '.join(ref.path for ref in sample.media)})" if "media" in parts else ""
            out.append(f"row '{sample.id}' ({sample.source}): {', '.join(parts)} changed{media}")
    return out


def _short(lines: Sequence[str]) -> list[str]:
    return [*lines[:_SHOWN], *([f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])]


def _column(rows: bytes, part: int) -> list[bytes]:
    return [rows[start : start + _PART] for start in range(part * _PART, len(rows), _ROW)]


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_PART).digest()


def _size(path: str) -> int:
    """Another size proves another content; the same size proves nothing. -1: not there."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _how(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    if name not in now:
        return "is missing"
    return "was not there" if name not in before else "has other content"
