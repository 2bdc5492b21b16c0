"""Audits the rows of a source chunk by chunk, in as many processes as there are cores, in the order of the file. What was found of the same
rows before is taken from the cache (`run.audit_known`).
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vlmrl.config.schema import SourceSection
from vlmrl.data.adapters import Importer, ImportOptions, Learned
from vlmrl.data.encode import Encoder
from vlmrl.data.raw import Raw, count_rows, raw_rows
from vlmrl.data.source import Dedupe, Ids, check_columns
from vlmrl.errors import RowError
from vlmrl.media.store import MediaSettings
from vlmrl.run.audit_chunk import CHUNK, Auditor, Chunk, Cut, Terms, Words
from vlmrl.run.audit_known import CACHE, Known
from vlmrl.run.audit_pool import AuditPool, Job, cores
from vlmrl.run.audit_report import SourceAudit
from vlmrl.run.ui import Ui

CUT = Cut(patch_size=14, merge_size=2, temporal_patch_size=2)
"""How media are cut where no model is named: as Qwen2.5-VL does."""
ALONE = 4_096
"""Rows that this process audits by itself before others are started, which takes them some seconds."""
_CHUNK_BYTES = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Read:
    """A chunk with the raw rows that it was found in."""

    raws: list[Raw]
    places: list[int]
    """Their numbers in the source, from 1."""
    chunk: Chunk


def terms_of(
    source: SourceSection,
    answer_format: str,
    data: Path,
    *,
    settings: MediaSettings | None,
    encoder: Encoder | None,
    decode: bool,
    all_gold: bool = False,
    plugins: Sequence[str] = (),
) -> Terms:
    """By what the rows of a source are audited.

    Args:
        data: folder that the source and its media root are relative to.
        encoder: of the recipe's model; None makes no prompts.
        settings, decode, all_gold, plugins: see `Terms`.
    """
    words, cut, model = None, CUT, ""
    if encoder is not None:
        words = Words(**{one.name: getattr(encoder, one.name) for one in fields(Words)})
        store: Any = encoder.media
        cut, model = Cut(**{one.name: getattr(store, one.name) for one in fields(Cut)}), store.fingerprint
    return Terms(
        options=ImportOptions.of(source, data),
        root=data,
        media_root=source.media_root,
        answer_format=answer_format,
        settings=settings,
        cut=cut,
        words=words,
        model=model,
        decode=decode,
        all_gold=all_gold,
        plugins=tuple(plugins),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RowVerdict:
    """What became of one row. `reason` is None where it is good; `id` where it could not be read."""

    where: str
    id: str | None
    index: int
    """In the columns of its chunk, or in `unread`."""
    reason: str | None = None
    message: str = ""
    duplicate: bool = False
    """Dropped as the same as an earlier row."""


def verdicts(chunk: Chunk, ids: Ids) -> Iterator[RowVerdict]:
    """Every row of a chunk in the order of the file, with repeated ids seen over all chunks of the source."""
    faults = {at: (reason, message) for at, reason, message in chunk.faults}
    unread = deque(enumerate(chunk.unread))
    for at in range(len(chunk.ids) + 1):
        while unread and unread[0][1][0] == at:
            number, (_, line, reason, message, _) = unread.popleft()
            yield RowVerdict(where=f"{chunk.file}:{line}", id=None, index=number, reason=reason, message=f"{reason}: {message}")
        if at == len(chunk.ids):
            return
        name, where = chunk.ids[at], f"{chunk.file}:{chunk.lines[at]}"
        try:
            new = ids.new(name, where, chunk.contents[16 * at : 16 * at + 16])
        except RowError as error:
            yield RowVerdict(where=where, id=name, index=at, reason=error.reason, message=str(error))
            continue
        reason, message = faults.get(at, (None, ""))
        yield RowVerdict(where=where, id=name, index=at, reason=reason, message=message, duplicate=not new)


def tally(found: SourceAudit, reads: Iterable[Read], dedupe: Dedupe) -> None:
    """Account for every row of a source in `found`, in the order of the file."""
    ids = Ids(dedupe)
    for read in reads:
        found.shape = read.chunk.learned.chosen
        for row in verdicts(read.chunk, ids):
            found.rows += 1
            if row.duplicate:
                found.duplicate()
            elif row.reason is not None:
                found.reject(row.reason, f"{row.where}: {row.message}")
            else:
                found.accept(read.chunk.tokens[row.index])


def audited(
    path: Path, terms: Terms, ui: Ui, *, encoder: Encoder | None = None, workers: int | None = None, keep: bool = True, cache: Path = CACHE
) -> Iterator[Read]:
    """What is found of the rows of a source, in their order.

    Args:
        encoder: see `Auditor`; with a `writer` all is done in this process.
        workers: processes beside this one; None: as many as there are cores. One core has none.
        keep: whether what is found is kept in the folder `cache`; what is known there is taken in any case.

    Raises:
        DataError: as `read_source`.
        VlmrlError: a worker died.
    """
    importer = Importer(terms.options)
    own = encoder if encoder is not None and encoder.writer is not None else None
    count = cores() if workers is None else workers
    title = f"check {path.name}" if terms.decode or terms.settings is None else f"audit {path.name}"
    with ExitStack() as stack:
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vlmrl-audit-"))) / "media"
        auditor = stack.enter_context(closing(Auditor(terms, shared, own)))
        known = None if terms.plugins else Known(cache, path, terms)
        total = count_rows(path)
        bar = stack.enter_context(ui.bar(title, total))
        done = 0
        pending: deque[tuple[list[Raw], list[int], str]] = deque()
        """Rows that are being audited, with the key under which what is found of them is kept ('' for what is known)."""

        def work(chunks: Iterable[tuple[list[int], list[Raw]]], learned: Learned) -> Iterator[Job | Chunk]:
            for places, raws in chunks:
                key = "" if known is None else known.key(raws, places, learned)
                found = None if known is None else known.take(key)
                pending.append((raws, places, "" if found is not None else key))
                yield (raws, places, learned) if found is None else found

        def here(jobs: Iterator[Job | Chunk]) -> Iterator[Chunk]:
            for job in jobs:
                yield job if isinstance(job, Chunk) else auditor.chunk(*job)

        def finished(found: Iterator[Chunk]) -> Iterator[Read]:
            nonlocal done
            for chunk in found:
                raws, places, key = pending.popleft()
                importer.learn(chunk.learned)
                done += chunk.rows
                if key and known is not None and keep:
                    known.add(key, chunk)
                elif known is not None and not key:
                    bar.skip(chunk.rows)
                bar.update(done)
                yield Read(raws=raws, places=places, chunk=chunk)

        chunks = _chunks(path)
        # The first rows tell the shape of the others, so nobody starts before it is known.
        for one in chunks:
            yield from finished(here(work([one], importer.learned())))
            if terms.options.columns is not None or (done >= ALONE and importer.chosen is not None):
                break
        rest = work(chunks, importer.learned())
        if own is None and count > 1 and total - done > ALONE:
            with AuditPool(terms, shared, min(count, (total - done) // CHUNK)) as pool:
                yield from finished(pool.map(rest))
        else:
            yield from finished(here(rest))
        check_columns(importer, path)
        if known is not None and keep:
            known.close()
        if importer.note() is not None:
            ui.say(str(importer.note()))


def _chunks(path: Path) -> Iterator[tuple[list[int], list[Raw]]]:
    """(numbers within the source, rows) of at most `CHUNK` rows of one file each."""
    places: list[int] = []
    rows: list[Raw] = []
    size = 0
    for place, raw in raw_rows(path):
        if rows and (len(rows) == CHUNK or size > _CHUNK_BYTES or raw.file != rows[0].file):
            yield places, rows
            places, rows, size = [], [], 0
        places.append(place)
        rows.append(raw)
        size += len(raw.content) if isinstance(raw.content, bytes) else _CHUNK_BYTES // CHUNK
    if rows:
        yield places, rows
