"""The rows of a stage, audited from media headers before the first step; what is bad goes to the quarantine with its reason."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.config.schema import DataSection, SourceSection
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.encode import Encoder
from vlmrl.data.gold import check_gold
from vlmrl.data.lazy import LazySamples
from vlmrl.data.raw import Raw, count_rows
from vlmrl.data.source import BadRow, Ids, RowReader, bad_row, check_usable, load_source
from vlmrl.errors import DataError, MediaError, RowError
from vlmrl.run.audit_known import CACHE
from vlmrl.run.audit_pool import cores
from vlmrl.run.audit_source import audited, terms_of, verdicts
from vlmrl.run.ui import Ui
from vlmrl.train import dist
from vlmrl.types import Sample

LARGE = 50_000
"""Rows that are audited in one process and held in memory."""
_MARK = 32


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Audited rows of a source under one answer format."""

    samples: Mapping[str, Sample]
    prompt_tokens: Mapping[str, int]
    """Length of each sample's prompt, known from media headers."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Id of a row that cannot be used -> where it is and why."""
    marks: bytes | None = None
    """What `identity.SourceRows.hashes` gives of `samples`, where it is known."""


def quarantine_row(path: Path, sample: Sample, reason: str, message: str) -> None:
    """Append one bad row; every rank may meet a different one, and appends are small single writes."""
    _quarantine(path, sample.id, sample.source, reason, message)


def _quarantine(path: Path, name: str, where: str, reason: str, message: str) -> None:
    line = {"id": name, "source": where, "reason": reason, "message": message[:500]}
    fs.append(path, json.dumps(line, sort_keys=True).encode() + b"\n")


def load_rows(
    source: SourceSection,
    data: DataSection,
    root: Path,
    answer_format: str,
    encoder: Encoder,
    *,
    quarantine: Path,
    ui: Ui,
    plugins: Sequence[str] = (),
    cache: Path = CACHE,
) -> Rows:
    """Samples by id in file order: parsed, their media present and within limits by header, their prompts short enough, their answers in
    agreement with their ground truth and its times within the video.

    More than `LARGE` rows are audited in several processes, and not at all where the cache knows them.

    Overlong prompts are dropped and counted (data.max_prompt_tokens says so); other faults count against data.max_bad_rows.

    Raises:
        DataError: too many bad rows, or none left.
    """
    path = root / source.path
    if count_rows(path) > LARGE:
        return _load_large(path, source, data, root, answer_format, encoder, quarantine=quarantine, plugins=plugins, ui=ui, cache=cache)
    samples = load_source(
        path,
        media_root=source.media_root,
        dedupe=data.dedupe,
        max_bad_rows=data.max_bad_rows,
        quarantine=quarantine if dist.is_main() else None,
        options=ImportOptions.of(source, root),
        say=ui.say,
    )
    good: dict[str, Sample] = {}
    tokens: dict[str, int] = {}
    faults = Faults(source.path, quarantine)
    with ui.bar(f"audit {Path(source.path).name}", len(samples)) as bar:
        for n, sample in enumerate(samples):
            try:
                prompt = encoder.plan(sample, answer_format)
                check_gold(sample, prompt)
                tokens[sample.id] = len(prompt.ids)
                good[sample.id] = sample
            except (MediaError, RowError) as error:
                faults.add(sample.id, sample.source, error.reason, str(error))
            bar.update(n + 1)
    faults.judge(len(samples), data, ui)
    return Rows(samples=good, prompt_tokens=tokens, left_out=faults.left_out)


class Faults:
    """Rows that could be read and cannot be used; each goes to the quarantine."""

    def __init__(self, source: str, quarantine: Path):
        self.left_out: dict[str, str] = {}
        """Id -> where it is and why."""
        self._source, self._quarantine = source, quarantine
        self._bad: dict[str, list[str]] = {}

    def add(self, name: str, where: str, reason: str, message: str) -> None:
        """One more. `message` begins with the reason."""
        self.left_out[name] = f"{where}: {message}"
        self._bad.setdefault(reason, []).append(name)
        if dist.is_main():
            _quarantine(self._quarantine, name, where, reason, message)

    def judge(self, rows: int, data: DataSection, ui: Ui) -> None:
        """Tell how many there are among so many rows that could be read.

        Raises:
            DataError: too many, or all of them.
        """
        good = rows - len(self.left_out)
        faulty = sum(len(names) for reason, names in self._bad.items() if reason != "overlong")
        if self._bad:
            counts = ", ".join(f"{len(names)} {reason}" for reason, names in sorted(self._bad.items()))
            ui.say(f"{self._source}: left out {counts}; see {self._quarantine}")
        if faulty > data.max_bad_rows * rows or not good:
            first = self.left_out[next(iter(self._bad.values()))[0]] if self._bad else "no rows"
            raise DataError(
                f"{self._source}: {faulty} of {rows} rows have unusable media or prompts, {good} are left; "
                f"data.max_bad_rows is {data.max_bad_rows}; first: {first}; all are in {self._quarantine}"
            )


class _Tokens(Mapping[str, int]):
    """Prompt tokens by id; a few bytes for each."""

    def __init__(self, numbers: Mapping[str, int], tokens: Sequence[int]):
        self._numbers, self._tokens = numbers, tokens

    def __getitem__(self, name: str) -> int:
        return self._tokens[self._numbers[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def _load_large(
    path: Path,
    source: SourceSection,
    data: DataSection,
    root: Path,
    answer_format: str,
    encoder: Encoder,
    *,
    quarantine: Path,
    plugins: Sequence[str],
    ui: Ui,
    cache: Path,
) -> Rows:
    """As `load_rows`: in several processes, with what is known of these rows taken from the cache. Rows of files of lines are parsed when
    they are used."""
    store: Any = encoder.media
    terms = terms_of(source, answer_format, root, settings=store.settings, encoder=encoder, decode=False, plugins=plugins)
    reader, ids, faults = RowReader(terms.options, terms.media_root), Ids(data.dedupe), Faults(source.path, quarantine)
    lazy, held, tokens, marks = LazySamples(reader), dict[str, Sample](), array("l"), bytearray()
    unread: list[BadRow] = []
    rows = readable = 0
    share = max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    for read in audited(path, terms, ui, encoder=encoder, workers=share, keep=dist.is_main(), cache=cache):
        chunk = read.chunk
        if reader.importer is not None:
            reader.importer.learn(chunk.learned)
        parts = _parts(chunk.places)
        for row in verdicts(chunk, ids):
            rows += 1
            if row.id is None:
                unread.append(chunk.bad_row(row.index))
            elif row.reason == "duplicate_id":
                unread.append(bad_row(read.raws[chunk.places[row.index]], RowError(row.reason, row.message.removeprefix("duplicate_id: "))))
            elif not row.duplicate:
                readable += 1
                if row.reason is not None:
                    faults.add(row.id, row.where, row.reason, row.message)
                    continue
                at, part = row.index, parts[row.index]
                raw, place = read.raws[chunk.places[at]], read.places[chunk.places[at]]
                if raw.offset is None:
                    held[row.id] = _parsed(reader, raw, place, part)
                else:
                    lazy.add(row.id, raw, place, part, chunk.contents[16 * at : 16 * at + 16])
                tokens.append(chunk.tokens[at])
                marks += chunk.marks[_MARK * at : _MARK * (at + 1)]
    check_usable(path, unread, readable, rows, max_bad_rows=data.max_bad_rows, quarantine=quarantine if dist.is_main() else None)
    faults.judge(readable, data, ui)
    samples: Mapping[str, Sample] = held or lazy
    numbers = {name: number for number, name in enumerate(held)} if held else lazy.numbers
    return Rows(samples=samples, prompt_tokens=_Tokens(numbers, tokens), left_out=faults.left_out, marks=bytes(marks))


def _parts(places: Sequence[int]) -> list[int]:
    """For each sample of a chunk, the how manieth of its raw row it is, from 0."""
    out: list[int] = []
    for number, place in enumerate(places):
        out.append(out[-1] + 1 if number and places[number - 1] == place else 0)
    return out


def _parsed(reader: RowReader, raw: Raw, place: int, part: int) -> Sample:
    found = [one for one in reader.read(raw, place) if not isinstance(one, BadRow)]
    return found[part][0]
