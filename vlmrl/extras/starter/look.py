"""Looks at the rows of a source as training reads them: with the same readers, under one setting after the other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES, AnswerType
from vlmrl.answers.foreign import ForeignRow, Gold
from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.data.raw import Raw, count_rows, raw_rows
from vlmrl.data.source import BadRow, RowReader, bad_row
from vlmrl.data.stored import stored
from vlmrl.errors import DataError, RowError
from vlmrl.types import Sample

LOOK = 400
"""Rows that are looked at; of a longer source those that `#400` draws."""
MOST = 0.05
"""Largest share of rows that may differ from the others. `check` then lists them."""
ANY = "as it stands"
VALUE = "value"
_FOLDER = "pictures"


class Anything(AnswerType):
    """Takes every gold answer as it stands, under `gt.value`: for reading rows before it is known what their answers are."""

    name = ANY
    main = "none"
    metrics = ()

    def convert(self, value: object, row: ForeignRow) -> Gold:
        return Gold(answer=value if isinstance(value, str) else json.dumps(value), gt={VALUE: value})


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What became of the rows under one setting."""

    good: list[Sample]
    bad: list[BadRow]
    missing: str | None = None
    """What is wrong with `columns`."""
    shape: str | None = None

    @property
    def rows(self) -> int:
        return len(self.good) + len(self.bad)

    def share(self, *reasons: str) -> float:
        """Share of rows that are bad for one of these reasons; of all reasons, where none is given."""
        return sum(not reasons or row.reason in reasons for row in self.bad) / max(1, self.rows)

    def problems(self) -> str:
        """Bad rows by reason, each with the first of them."""
        counts = Counter(row.reason for row in self.bad)
        firsts = {row.reason: row for row in reversed(self.bad)}
        return "".join(f"\n  {count} {reason}, first: {firsts[reason]}" for reason, count in counts.most_common())


@dataclass(kw_only=True)
class Look:
    """Some rows of a source. Media that stand in them as bytes lie in `folder` for as long as it is open."""

    path: Path
    total: int
    raws: list[tuple[int, Raw]]
    folder: Path | None
    """Folder of the media that stood in the rows; None where none did."""
    objects: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    """The rows that are objects."""

    def read(self, settings: Mapping[str, Any], media_dir: Path | None = None) -> Reading:
        """Read the rows under settings of a source.

        Args:
            media_dir: folder of the media; that of `folder` comes first.

        Raises:
            DataError: the settings contradict each other.
        """
        said = {key: value for key, value in settings.items() if key not in ("media_folder", "media_root", "path")}
        reader = RowReader(ImportOptions(**said, media_dir=self.folder or media_dir), ".")
        good: list[Sample] = []
        bad: list[BadRow] = []
        for place, raw in self.raws:
            for found in reader.read(raw, place):
                if isinstance(found, BadRow):
                    bad.append(found)
                else:
                    good.append(found[0])
        missing = None if reader.importer is None else reader.importer.missing()
        shape = None if reader.importer is None else reader.importer.chosen
        return Reading(good=good, bad=bad, missing=missing, shape=shape)


@contextmanager
def opened(path: Path) -> Iterator[Look]:
    """Look at a source.

    Raises:
        DataError: there is nothing of that name, it cannot be read, or it has no row that is an object.
    """
    total = count_rows(path)
    if not total:
        raise DataError(f"{path}: has no rows")
    some = path.with_name(f"{path.name}#{LOOK}") if total > LOOK else path
    ANSWER_TYPES.add(ANY, _ANYTHING)
    try:
        with TemporaryDirectory(prefix="vlmrl-new-") as scratch:
            root, raws, objects, held = Path(scratch), list[tuple[int, Raw]](), list[Mapping[str, Any]](), False
            bad: list[BadRow] = []
            importer = Importer(ImportOptions())
            for place, raw in raw_rows(some):
                try:
                    row = importer.opened(raw.parse())
                    kept = stored(row, root=root, folder=_FOLDER)
                except RowError as error:
                    bad.append(bad_row(raw, error))
                    raws.append((place, raw))
                    continue
                held = held or kept != row
                raws.append((place, Raw(raw.file, raw.line, "object", kept)))
                if isinstance(kept, dict):
                    objects.append(kept)
            if not objects or len(bad) > MOST * len(raws):
                raise DataError(f"{path}: {len(bad)} of {len(raws)} rows cannot be read{Reading(good=[], bad=bad).problems()}")
            yield Look(path=path, total=total, raws=raws, folder=root if held else None, objects=objects)
    finally:
        del ANSWER_TYPES[ANY]


def values_of(samples: Sequence[Sample]) -> list[tuple[Sample, Any]]:
    """The rows whose gold answer was taken as it stands, with that answer."""
    return [(sample, sample.gt[VALUE]) for sample in samples if sample.answer_type == ANY]


_ANYTHING = Anything()
