"""Audits a chunk of rows, in this process or in a worker: parses them, looks at their media, measures their prompts and scores their
gold answers. What it finds is small and does not hold the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vlmrl.data.adapters import ImportOptions, Learned
from vlmrl.data.encode import Encoder
from vlmrl.data.gold import check_answer, check_gold
from vlmrl.data.raw import Raw
from vlmrl.data.source import BadRow, RowReader
from vlmrl.errors import MediaError, RowError
from vlmrl.media.seen import PlanCache, to_json
from vlmrl.media.store import Grid, MediaSettings, MediaStore
from vlmrl.run.identity import SourceRows
from vlmrl.types import MediaKind, Prompt, Sample

CHUNK = 512
"""Rows of a chunk."""
_BAD = -1
NOTHING = Learned(None, None, (), ())


@dataclass(frozen=True, kw_only=True)
class Words:
    """What prompts are made with: parts of an `Encoder`."""

    tokenizer: Any
    pad_ids: dict[MediaKind, int]
    special_ids: frozenset[int]
    max_prompt_tokens: int
    prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a model cuts media: the numbers of a `MediaStore` that have nothing to do with pixels."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    step_times: bool = False


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the rows of a source are audited by; plain data, so that another process can do it."""

    options: ImportOptions
    root: Path
    """Folder that `media_root` is relative to."""
    media_root: str
    answer_format: str
    settings: MediaSettings | None
    """None opens no media."""
    cut: Cut
    words: Words | None
    """None makes no prompts: there is no model whose tokens are meant."""
    model: str
    """Fingerprint of the tokenizer and the processor; empty without one."""
    decode: bool
    """Media are decoded; else their headers are read."""
    all_gold: bool
    """Gold answers are scored also where nothing stands beside them."""
    plugins: tuple[str, ...] = ()
    """Modules that register answer types or adapters."""


@dataclass(kw_only=True)
class Chunk:
    """What was found of consecutive rows of one file; JSON values and arrays."""

    file: str
    rows: int
    """How many raw rows."""
    ids: list[str] = field(default_factory=list[str])
    """Of every row that could be read, in order; those below are parallel to it."""
    lines: list[int] = field(default_factory=list[int])
    places: list[int] = field(default_factory=list[int])
    """Number of its raw row within the chunk, from 0."""
    contents: bytes = b""
    """16 bytes each."""
    tokens: list[int] = field(default_factory=list[int])
    """Length of its prompt (0 where none was made); -1 where it cannot be used."""
    marks: bytes = b""
    """32 bytes each (`run.identity`)."""
    faults: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """(index in `ids`, reason, message) of those that cannot be used."""
    unread: list[tuple[int, int, str, str, str]] = field(default_factory=list[tuple[int, int, str, str, str]])
    """(how many readable rows come before it, line, reason, message, excerpt) of rows that cannot be read."""
    media: list[tuple[list[Any], str]] = field(default_factory=list[tuple[list[Any], str]])
    """References of what the rows show, with the states of the files."""
    learned: Learned = NOTHING

    def bad_row(self, number: int) -> BadRow:
        """A row of `unread`."""
        _, line, reason, message, excerpt = self.unread[number]
        return BadRow(file=self.file, line=line, reason=reason, message=message, excerpt=excerpt)


class _Planner(Protocol):
    def plan(self, sample: Sample, answer_format: str) -> Prompt: ...


@dataclass(frozen=True)
class _Mute:
    """Prompts without tokens: of their media alone."""

    media: PlanCache | None
    root: Path

    def plan(self, sample: Sample, answer_format: str) -> Prompt:
        root = self.root / sample.media_root
        handles = () if self.media is None else tuple(self.media.plan(ref, root) for ref in sample.media)
        return Prompt(sample=sample, ids=(), media=handles, spans=(), answer_format=answer_format)


class Auditor:
    """Audits chunks of one source. One per process; `shared` is the table of media that the processes of this audit share.

    `encoder` is one of this process for families whose own processor writes prompts (`Encoder.writer`), which cannot be given to others.
    """

    def __init__(self, terms: Terms, shared: Path, encoder: Encoder | None = None):
        self.terms = terms
        self._seen: PlanCache | None = None
        self._store: MediaStore | None = None
        if terms.settings is not None:
            if encoder is None:
                self._store = _bare_store(terms.settings, terms.cut)
            store: Any = self._store if encoder is None else encoder.media
            self._seen = PlanCache(store.examine if terms.decode else store.plan, shared)
        self._planner: _Planner = _Mute(self._seen, terms.root)
        words = terms.words
        if encoder is not None and self._seen is not None:
            self._planner = dataclasses.replace(encoder, media=self._seen)  # pyright: ignore[reportArgumentType]
        elif words is not None and self._seen is not None:
            parts = {one.name: getattr(words, one.name) for one in dataclasses.fields(words)}
            self._planner = Encoder(media=self._seen, data_root=terms.root, **parts)  # pyright: ignore[reportArgumentType]

    def close(self) -> None:
        """Close what it opened."""
        if self._seen is not None:
            self._seen.close()
        if self._store is not None:
            self._store.close()

    def chunk(self, raws: Sequence[Raw], places: Sequence[int], learned: Learned) -> Chunk:
        """What is found of rows of one file. `places`: their numbers in the source, from 1; `learned`: what rows before them have told."""
        reader = RowReader(self.terms.options, self.terms.media_root)
        if reader.importer is not None:
            reader.importer.learn(learned)
        if self._seen is not None:
            self._seen.begin()
        out = Chunk(file=raws[0].file, rows=len(raws))
        good: list[Sample] = []
        contents: list[bytes] = []
        for number, (raw, place) in enumerate(zip(raws, places, strict=True)):
            for found in reader.read(raw, place):
                if isinstance(found, BadRow):
                    out.unread.append((len(out.ids), found.line, found.reason, found.message, found.excerpt))
                    continue
                sample, content = found
                tokens = self._tokens(sample, out)
                out.ids.append(sample.id)
                out.lines.append(raw.line)
                out.places.append(number)
                out.tokens.append(tokens)
                contents.append(content)
                good.append(sample)
        out.contents = b"".join(contents)
        out.marks = b"" if self.terms.decode else SourceRows(samples=good, root=lambda sample: self.terms.root / sample.media_root).hashes()
        if self._seen is not None:
            out.media = [(to_json(ref), state) for (_, ref), state in self._seen.used.items()]
        if reader.importer is not None:
            out.learned = reader.importer.learned()
        return out

    def _tokens(self, sample: Sample, out: Chunk) -> int:
        try:
            prompt = self._planner.plan(sample, self.terms.answer_format)
            if self.terms.settings is not None:
                check_gold(sample, prompt)
            if self.terms.all_gold:
                check_answer(sample, self.terms.answer_format, always=True)
        except (MediaError, RowError) as error:
            out.faults.append((len(out.ids), error.reason, str(error)))
            return _BAD
        return len(prompt.ids)


def _bare_store(settings: MediaSettings, cut: Cut) -> MediaStore:
    """A store that decodes and plans; no medium is cut into patches in it."""

    def refuse(frames: np.ndarray, kind: MediaKind) -> tuple[np.ndarray, Grid]:
        raise TypeError(f"an audit cuts no {kind} into patches")

    settings = dataclasses.replace(settings, workers=min(1, settings.workers))  # of its own, beside as many as audit
    return MediaStore(settings, patchify=refuse, fingerprint="", **dataclasses.asdict(cut))
