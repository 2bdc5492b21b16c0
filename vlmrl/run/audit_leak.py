"""Whether rows that are trained on are also tested on, by content: the bytes of their media and the words of their questions.

A training row with the media and the question of a held-out row is a problem. One that shows a held-out medium with another question is
told as a warning: with few pictures and many questions that may be meant. Names, folders and ids do not matter, and neither do answers.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlmrl.config.schema import Config, SourceSection
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.source import read_source
from vlmrl.errors import DataError, MediaError
from vlmrl.evals.ask.suite import data_root_of, load_suite, suite_path
from vlmrl.media.access import IMAGE_BYTES, VIDEO_BYTES, open_media
from vlmrl.types import MediaRef, Sample

NAMED = 3
"""Pairs of rows that a message names; all are counted."""
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RowContent:
    """What a row shows and asks, without its answer."""

    id: str
    where: str
    """`file:line`."""
    media: tuple[str, ...]
    """SHA-256 of each file, in the order of the hashes: which comes first is no difference."""
    question: str
    """Without case, and with single spaces."""

    def __str__(self) -> str:
        return f"{self.where} ('{self.id}')"


class Hashes:
    """SHA-256 of media files, each read once while path, size and time of modification stay the same; of a video given as pictures
    the hash of all of them with their times, read each time.

    Attributes:
        files: how many were read.
    """

    def __init__(self) -> None:
        self.files = 0
        self._known: dict[tuple[str, int, int], str] = {}

    def of(self, ref: MediaRef, root: Path) -> str:
        """
        Raises:
            MediaError: it may not be read, is not there, or is too large.
        """
        if ref.as_frames:
            from vlmrl.media.frames import read_bundle  # few rows have a video as pictures

            self.files += 1
            return read_bundle(ref, root).digest
        limit = IMAGE_BYTES if ref.kind == "image" else VIDEO_BYTES
        with open_media(root, ref.path, max_bytes=limit) as file:
            status = os.fstat(file.fileno())
            place = (os.path.join(root, ref.path), status.st_size, status.st_mtime_ns)
            if place not in self._known:
                digest = hashlib.sha256()
                try:
                    while piece := file.read(_CHUNK):
                        digest.update(piece)
                except OSError as error:
                    raise MediaError("unreadable", f"{ref.path}: {error.strerror or error}") from error
                self.files += 1
                self._known[place] = digest.hexdigest()
            return self._known[place]

    def shown(self, sample: Sample, root: Path) -> RowContent:
        """`root`: what the sample's media root is relative to. Raises MediaError as `of`."""
        media = sorted(self.of(ref, root / sample.media_root) for ref in sample.media)
        return RowContent(id=sample.id, where=sample.source, media=tuple(media), question=plain_question(sample.asked))


@dataclass(kw_only=True)
class HeldOutRows:
    """Rows that nothing may be trained on, and those that could not be looked at."""

    name: str
    rows: list[RowContent] = field(default_factory=list[RowContent])
    bad: list[str] = field(default_factory=list[str])
    """`file:line: reason` of rows that cannot be read, or whose media cannot."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Pairs of a training row and the first held-out row like it."""

    same: list[tuple[RowContent, RowContent]]
    """The same media and the same question."""
    media: list[tuple[RowContent, RowContent]]
    """At least one medium in common, with another question or other media beside it."""


def plain_question(text: str) -> str:
    """A question for comparing: compatibility forms of Unicode made equal, without case, single spaces. Signs stay: `+` is not `-`."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def overlap(trained: Iterable[RowContent], held_out: Iterable[RowContent]) -> Overlap:
    """Which training rows are like held-out ones. Rows without media are alike by their question alone."""
    exact: dict[tuple[tuple[str, ...], str], RowContent] = {}
    by_medium: dict[str, RowContent] = {}
    for row in held_out:
        exact.setdefault((row.media, row.question), row)
        for digest in row.media:
            by_medium.setdefault(digest, row)
    same: list[tuple[RowContent, RowContent]] = []
    media: list[tuple[RowContent, RowContent]] = []
    for row in trained:
        twin = exact.get((row.media, row.question))
        near = next((by_medium[digest] for digest in row.media if digest in by_medium), None)
        if twin is not None:
            same.append((row, twin))
        elif near is not None:
            media.append((row, near))
    return Overlap(same=same, media=media)


def told(source: str, held_out: str, found: Overlap) -> tuple[list[str], list[str]]:
    """(problems, warnings) of the training source of that name against the held-out set of that name."""
    problems: list[str] = []
    notes: list[str] = []
    if found.same:
        what = f"{source}: {len(found.same)} training rows have the media and the question of rows in {held_out}"
        problems = [f"{what}{_pairs(found.same)}; take them out of one of the two, or the evaluation measures memory"]
    if found.media:
        notes = [f"warning: {source}: {len(found.media)} training rows show media of {held_out}, with other questions{_pairs(found.media)}"]
    return problems, notes


def held_out_sets(cfg: Config, data: Path, hashes: Hashes) -> list[HeldOutRows]:
    """The sets of `data.check_against` and of `eval.suite`, one per file of rows.

    A path that ends in .yaml or .yml, or the name of a suite of ours, is a suite; its limits are not looked at, so that all of its rows
    count. Anything else is a source of rows below the data root, with its media there.

    Raises:
        ConfigError: a suite does not exist, is wrong, or does not say where its data are.
        DataError: a file of rows is missing or cannot be read.
    """
    out: list[HeldOutRows] = []
    done: set[tuple[Path, SourceSection]] = set()
    suites: list[tuple[str, Path | None]] = [(name, None) for name in cfg.data.check_against if _is_suite(name, data)]
    if cfg.eval.suite is not None:
        suites.append((cfg.eval.suite, None if cfg.eval.data_root is None else Path(cfg.eval.data_root).expanduser()))
    files = [(SourceSection(path=name), data, name) for name in cfg.data.check_against if not _is_suite(name, data)]
    for name, given in suites:
        suite = load_suite(suite_path(name))
        toy = given is None and suite.data_root == "toy" and cfg.data.root == "toy"
        root = data_root_of(suite, data if toy else given)
        files += [(task.rows, root, f"{suite.id}/{task.id}") for task in suite.tasks if task.file]
    for source, root, name in files:
        if (root, source) not in done:
            done.add((root, source))
            out.append(_read(source, root, name, hashes))
    return out


def _is_suite(name: str, data: Path) -> bool:
    return name.endswith((".yaml", ".yml")) or ("." not in name and "/" not in name and not (data / name).exists())


def _read(source: SourceSection, root: Path, name: str, hashes: Hashes) -> HeldOutRows:
    found = read_source(root / source.path, media_root=source.media_root, options=ImportOptions.of(source, root))
    out = HeldOutRows(name=name, bad=[str(row) for row in found.bad])
    for sample in found.samples:
        try:
            out.rows.append(hashes.shown(sample, root))
        except MediaError as error:
            out.bad.append(f"{sample.source}: {error}")
    if not out.rows:
        first = f"; first: {out.bad[0]}" if out.bad else ""
        raise DataError(f"{name}: none of its {len(out.bad)} rows can be compared with training rows ({root / source.path}){first}")
    return out


def repeated_ids(sources: Mapping[SourceSection, Sequence[Sample]], data: Path, hashes: Hashes) -> list[str]:
    """Ids that two sources of training rows give to different rows: statistics are kept by id, and would be mixed up.

    The same row in two sources (a file with thoughts for one stage and without for the next) is no problem.

    Raises:
        MediaError: a medium of such a row cannot be read.
    """
    first: dict[str, Sample] = {}
    pairs: list[tuple[RowContent, RowContent]] = []
    for samples in sources.values():
        for sample in samples:
            other = first.setdefault(sample.id, sample)
            if other is sample or other.source == sample.source:
                continue
            one, two = hashes.shown(other, data), hashes.shown(sample, data)
            if (one.media, one.question) != (two.media, two.question):
                pairs.append((one, two))
    if not pairs:
        return []
    return [f"{len(pairs)} ids stand for different rows in two sources of training rows{_pairs(pairs)}; give every row an id of its own"]


def _pairs(pairs: Sequence[tuple[RowContent, RowContent]]) -> str:
    more = f", and {len(pairs) - NAMED} more" if len(pairs) > NAMED else ""
    return ": " + ", ".join(f"{one} and {two}" for one, two in pairs[:NAMED]) + more
