"""Keeps what audits found of chunks of rows, by content: rows that were audited before, by the same terms and with the same media files,
are not audited again. A check that was cut off goes on where it was, and a run on rows that were checked starts at once.

One file for each source and its terms, in `<cache>/rows-<hash>/chunks`: a line for each chunk, with the hash of its rows, what was found of
them (compressed JSON), and a hash of both. A damaged line is as none.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from vlmrl import __version__, fs
from vlmrl.data.adapters import OWN, Learned
from vlmrl.data.raw import Raw
from vlmrl.media.seen import from_json, state_of
from vlmrl.run.audit_chunk import Chunk, Terms

CACHE = Path("~/.cache/vlmrl")
"""Beside generated worlds and base models; `vlmrl tools cache` lists and removes it."""
_SCHEMA = 1
"""Raise it when an audit finds other things in the same rows."""
_BYTES = ("contents", "marks")
_STATES = 100_000
"""Media whose states are remembered while chunks are compared."""


class Known:
    """The chunks of one source. `take` gives what is known of rows, `add` keeps what was found; `close` forgets what was not asked for."""

    def __init__(self, cache: Path, source: Path, terms: Terms):
        self._terms = terms
        options = {one.name: getattr(terms.options, one.name) for one in dataclasses.fields(terms.options)}
        said = [_SCHEMA, __version__, _libraries(), terms.model, str(source.absolute()), options, str(terms.root.absolute())]
        said += [terms.media_root, terms.answer_format, terms.decode, terms.all_gold]
        said += [terms.words and [terms.words.max_prompt_tokens, terms.words.prompt]]
        said += [None if terms.settings is None else dataclasses.asdict(terms.settings), dataclasses.asdict(terms.cut)]
        self._said = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
        self.path = cache.expanduser() / f"rows-{self._said[:16]}" / "chunks"
        self._places: dict[str, tuple[int, int]] = {}
        self._used: set[str] = set()
        self._outdated = False
        self._states: dict[str, str] = {}
        if self.path.exists():
            self._read()

    def key(self, raws: Sequence[Raw], places: Sequence[int], learned: Learned) -> str:
        """Hash of rows and of all that decides what is found of them, but for the state of their media."""
        digest = hashlib.sha256(json.dumps([self._said, raws[0].file, places, learned]).encode("utf-8", "surrogateescape"))
        for raw in raws:
            content = raw.content if isinstance(raw.content, bytes) else repr(raw.content).encode("utf-8", "surrogatepass")
            digest.update(f"\n{raw.line} {raw.form} {len(content)} ".encode())
            digest.update(content)
        return digest.hexdigest()

    def take(self, key: str) -> Chunk | None:
        """What was found of these rows, if their media are as they were."""
        if key not in self._places:
            return None
        start, length = self._places[key]
        with self.path.open("rb") as file:
            file.seek(start)
            body = file.read(length)
        chunk = _chunk(body)
        root = self._terms.root / self._terms.media_root
        for ref, state in chunk.media:
            if self._state(json.dumps(ref), ref, root) != state:
                return None
        self._used.add(key)
        return chunk

    def add(self, key: str, chunk: Chunk) -> None:
        """Keep what was found. Not of rows of other trainers that could not be read: why may lie in a medium that no row then names."""
        if chunk.unread and chunk.learned.chosen != OWN:
            return
        values = {one.name: getattr(chunk, one.name) for one in dataclasses.fields(chunk)}
        values |= {name: base64.b64encode(values[name]).decode() for name in _BYTES}
        body = base64.b64encode(zlib.compress(json.dumps(values, separators=(",", ":")).encode(), 1))
        fs.mkdir(self.path.parent)
        self._outdated |= key in self._places
        fs.append(self.path, b" ".join([key.encode(), body, _seal(key.encode(), body)]) + b"\n")
        self._used.add(key)

    def close(self) -> None:
        """To be called when the source was audited to its end: chunks that are not of it any more are removed."""
        if not self._outdated and self._used >= set(self._places):
            return
        lines: dict[bytes, bytes] = {}
        for line in self.path.read_bytes().splitlines(keepends=True):
            lines[line[:64]] = line  # the last one of a key is the newest
        fs.write_bytes(self.path, b"".join(line for key, line in lines.items() if key.decode("ascii", "replace") in self._used))

    def _read(self) -> None:
        position = 0
        with self.path.open("rb") as file:
            for line in file:
                parts = line.rstrip(b"\n").split(b" ")
                if len(parts) == 3 and _seal(*parts[:2]) == parts[2]:
                    self._places[parts[0].decode()] = (position + len(parts[0]) + 1, len(parts[1]))
                position += len(line)

    def _state(self, name: str, ref: list[Any], root: Path) -> str:
        if name not in self._states:
            if len(self._states) >= _STATES:
                self._states.clear()
            self._states[name] = state_of(from_json(ref), root)
        return self._states[name]


def _chunk(body: bytes) -> Chunk:
    values: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(body)))
    values |= {name: base64.b64decode(values[name]) for name in _BYTES}
    values["learned"] = Learned(*values["learned"])
    values |= {name: [tuple(one) for one in values[name]] for name in ("faults", "unread", "media")}
    return Chunk(**values)


def _seal(key: bytes, body: bytes) -> bytes:
    return hashlib.sha256(key + b" " + body).hexdigest()[:16].encode()


def _libraries() -> list[str]:
    """Versions of what decodes media."""
    out: list[str] = []
    for name in ("av", "decord", "torchcodec", "pillow", "numpy"):
        try:
            out.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            out.append(name)
    return out
