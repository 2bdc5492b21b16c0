"""What a teacher sees of a medium where it looks at a part: the row's box, widened and clipped, and the store that shows it.

Vision-OPD, arXiv:2605.18740: the student sees the whole picture, the teacher a crop of what the question is about. Ours: the teacher may
see the crop behind the whole (`beside`), so that coordinates keep their meaning; and boxes of videos, the same for every frame.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.data.encode import Encoder, MediaSource
from vlmrl.errors import DataError
from vlmrl.extras.distill.section import TeacherMediaSection
from vlmrl.media.decode import DecodedMedium, decode_views
from vlmrl.media.places import named, stored_as
from vlmrl.media.region import Region
from vlmrl.media.resize import single_thread
from vlmrl.media.sizing import Sizing
from vlmrl.media.store import MediaSettings, MediaStore, ProcessedMedia
from vlmrl.train.state import UsedMedia
from vlmrl.types import MediaHandle, MediaRef, Sample

if TYPE_CHECKING:
    from vlmrl.media.argued import MediaProcessor


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRef(MediaRef):
    """Reference to a medium, with the part that the teacher looks at. A store other than `CropStore` shows the whole of it."""

    region: Region


def whole_of(ref: MediaRef) -> MediaRef:
    """Give the reference without a part."""
    return MediaRef(**{one.name: getattr(ref, one.name) for one in dataclasses.fields(MediaRef)})


def part_of(ref: MediaRef, region: Region) -> PartRef:
    """Give the reference with this part."""
    return PartRef(**{one.name: getattr(ref, one.name) for one in dataclasses.fields(MediaRef)}, region=region)


def widened(box: Region, margin: float) -> Region:
    """Widen a box at each end by `margin` of its side, and clip it to the picture."""
    x1, y1, x2, y2 = box
    more_x, more_y = margin * (x2 - x1), margin * (y2 - y1)
    return max(0.0, x1 - more_x), max(0.0, y1 - more_y), min(1.0, x2 + more_x), min(1.0, y2 + more_y)


@dataclass(frozen=True, kw_only=True)
class Crop:
    """Which part of its media a teacher sees of each row."""

    name: str
    """Of the box in the row's `meta`."""
    margin: float
    beside: bool
    """Whether it sees the whole media, and the parts behind them."""

    @staticmethod
    def of(media: TeacherMediaSection) -> Crop | None:
        """Read the section; None where the teacher sees whole media."""
        if media.crop is None:
            return None
        return Crop(name=media.crop.removeprefix("meta."), margin=media.margin, beside=media.beside)

    def regions(self, sample: Sample) -> tuple[Region | None, ...]:
        """Find the part of each medium of a row; None for one that is shown whole.

        Raises:
            DataError: the row has no box, or one that is none; names the row, the key and what to write.
        """
        given: Any = sample.meta.get(self.name)
        if not sample.media:
            return ()
        if given is None:
            raise DataError(
                f"{_where(sample)}: teacher.media.crop is meta.{self.name}, and the row has none; give it x1, y1, x2, y2 as shares of "
                "width and height, for example [0.25, 0.1, 0.5, 0.3], or leave the row out"
            )
        boxes: Any = [given] if len(sample.media) == 1 and not _holds_boxes(given) else given
        if not isinstance(boxes, Sequence) or len(cast(Sequence[Any], boxes)) != len(sample.media):
            raise DataError(
                f"{_where(sample)}: meta.{self.name} is {given!r}, and the row has {len(sample.media)} media; of several media it is a "
                "list with a box for each, null for one that is shown whole"
            )
        return tuple(None if box is None else widened(self._read(box, sample), self.margin) for box in cast(Sequence[Any], boxes))

    def _read(self, box: Any, sample: Sample) -> Region:
        values: list[Any] = list(cast(Sequence[Any], box)) if isinstance(box, Sequence) and not isinstance(box, str) else []
        if len(values) == 4 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            x1, y1, x2, y2 = map(float, values)
            if 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1:
                return x1, y1, x2, y2
        raise DataError(
            f"{_where(sample)}: meta.{self.name} has {box!r} for a box: expected x1, y1, x2, y2 with 0 <= x1 < x2 <= 1 and "
            "0 <= y1 < y2 <= 1, shares of width and height; divide pixels by the sides of the picture, and thousandths by 1000"
        )

    def marked(self, sample: Sample) -> Sample:
        """Give the row with the parts in its references. A store of the student shows the same of it.

        Raises:
            DataError: as `regions`.
        """
        pairs = zip(sample.media, self.regions(sample), strict=True)
        media = tuple(whole_of(ref) if region is None else part_of(ref, region) for ref, region in pairs)
        return dataclasses.replace(sample, media=media)

    def views(self, sample: Sample) -> list[tuple[int, MediaRef]]:
        """List what the teacher is shown, in order, each with the number of the row's medium that it is.

        Raises:
            DataError: as `regions`.
        """
        parts = list(enumerate(self.marked(sample).media))
        if not self.beside:
            return parts
        return [(n, whole_of(ref)) for n, ref in parts] + [(n, ref) for n, ref in parts if isinstance(ref, PartRef)]

    def shown(self, sample: Sample) -> Sample:
        """Give the row with the media that the teacher is shown.

        Raises:
            DataError: as `regions`.
        """
        return dataclasses.replace(sample, media=tuple(ref for _, ref in self.views(sample)))

    def check(self, samples: Iterable[Sample]) -> None:
        """Check that all rows can be shown so.

        Raises:
            DataError: what `problems` says.
        """
        if problems := self.problems(samples):
            raise DataError("\n".join(problems))

    def problems(self, samples: Iterable[Sample]) -> list[str]:
        """Say which rows cannot be shown so: those without a box, and without `beside` those whose answers are places in the picture."""
        placed: dict[str, list[str]] = {}
        out: list[str] = []
        for sample in samples:
            try:
                cut = any(region is not None for region in self.regions(sample))
            except DataError as error:
                out.append(str(error))
                continue
            if cut and not self.beside and ANSWER_TYPES[sample.answer_type].in_frame:
                placed.setdefault(sample.answer_type, []).append(sample.id)
        if len(out) > 1:
            out = [f"{out[0]}; {len(out) - 1} more rows have none that can be read"]
        for answer_type, rows in placed.items():
            out.append(
                f"teacher.media.crop: {len(rows)} rows have answers of the type '{answer_type}', the first is '{rows[0]}': coordinates in "
                "a crop mean another place than in the whole, which the policy sees; set teacher.media.beside: true, with which the "
                "teacher sees both, or leave these rows out"
            )
        return out


def _holds_boxes(given: Any) -> bool:
    several = list(cast(Sequence[Any], given)) if isinstance(given, Sequence) and not isinstance(given, str) else []
    return any(one is None or (isinstance(one, Sequence) and not isinstance(one, str)) for one in several)


def _where(sample: Sample) -> str:
    return f"row '{sample.id}' ({sample.source})"


@dataclass(frozen=True, kw_only=True)
class MarkedEncoder(Encoder):
    """An encoder of the student, which asks for media with the parts that the teacher sees, so that what it decodes is cut for both."""

    crop: Crop

    @staticmethod
    def like(encoder: Encoder, crop: Crop, media: MediaSource) -> MarkedEncoder:
        """Make one of another encoder, with these media."""
        given: dict[str, Any] = {one.name: getattr(encoder, one.name) for one in dataclasses.fields(encoder) if one.init}
        return MarkedEncoder(**{**given, "media": media}, crop=crop)

    def wanted(self, sample: Sample) -> list[tuple[MediaRef, Path]]:
        return [(ref, self.root(sample)) for ref in self.crop.marked(sample).media]


class CropStore(MediaStore):
    """Shows of a reference with a part that part alone; its key is made of that of the whole and of the part."""

    beside = False
    """Whether the whole is kept as well where another store decodes for both."""

    def views_of(self, ref: MediaRef) -> Mapping[MediaRef, Sizing]:
        if not isinstance(ref, PartRef):
            return super().views_of(ref)
        whole = {whole_of(ref): self.sizing} if self.beside else {}
        return {**whole, ref: dataclasses.replace(self.sizing, region=ref.region)}

    def key_of(self, ref: MediaRef, digest: str) -> str:
        key = super().key_of(ref, digest)
        return hashlib.sha256(f"{key} {ref.region}".encode()).hexdigest() if isinstance(ref, PartRef) else key

    def weigh(self, ref: MediaRef, root: Path) -> int:
        return sum(MediaStore.weigh(self, one, root) for one in self.views_of(ref))

    def _decode(self, ref: MediaRef, data: bytes) -> DecodedMedium:
        if not isinstance(ref, PartRef):
            return super()._decode(ref, data)
        with named(ref), single_thread():
            kind, part = stored_as(ref), self.views_of(ref)[ref]
            # a worker gives its own view first
            return decode_views(data, kind, [part])[0] if self.pool is None else self.pool.views(data, kind, [part])[1]


def store_of(settings: MediaSettings, processor: MediaProcessor, crop: Crop | None) -> MediaStore:
    """Make the store of a teacher, as a model's own processor cuts media."""
    if crop is None:
        return MediaStore.of(settings, processor)
    store = CropStore.of(settings, processor)
    store.beside = crop.beside
    return store


@dataclass(frozen=True)
class WatchedCrops:
    """A store of a teacher that compares what it gives with what was given before, each part of a file by itself."""

    used: UsedMedia
    store: MediaStore
    label: str

    def get(self, ref: MediaRef, root: Path) -> ProcessedMedia:
        """Give a medium as the store does, once it is compared.

        Raises:
            CheckpointError: the medium changed since the run used it.
        """
        part = f"{','.join(map(repr, ref.region))}/" if isinstance(ref, PartRef) else ""
        return self.used.of(self.store, f"{self.label}{part}").get(ref, root)

    def plan(self, ref: MediaRef, root: Path) -> MediaHandle:
        """Plan a medium as the store does."""
        return self.store.plan(ref, root)
