"""How a source says that its rows are read, and what reads rows of a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from vlmrl.registry import Catalogue
from vlmrl.types import CoordinateFrame

if TYPE_CHECKING:
    from vlmrl.answers.coordinates import Axis, Target, TimeUnit


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportOptions:
    """What a source says about its rows, where they do not say it themselves."""

    adapter: str | None = None
    """A name in `ADAPTERS`, None to detect it by the first row whose shape is known."""
    answer_type: str | None = None
    task: str | None = None
    frame: CoordinateFrame | None = None
    axis: Axis | None = None
    to_frame: Target = "norm1000"
    time_unit: TimeUnit | None = None
    time_fps: float | None = None
    instructions: Literal["drop", "keep"] = "drop"
    turns: Literal["first", "last", "split"] | None = None
    """What to read of rows with several turns (`adapters.turns`); None refuses them."""
    columns: Mapping[str, str | tuple[str, ...]] | None = None
    """Our key -> column or columns of the rows (`adapters.columns`), for rows of no known shape."""
    media_dir: Path | None = None
    """Folder of the media; needed for boxes in pixels (to read the size of their picture) and for rows with image bytes."""
    media_folder: str | None = None
    """Folder below `media_dir` that image bytes in rows are written to."""
    frames_fps: float | None = None
    """Frames per second of videos that rows give as lists of pictures without saying it."""

    @classmethod
    def of(cls, source: Any, root: Path) -> ImportOptions:
        """Read the options of a `source` section, of a recipe or of a suite's task (`config.section.SourceSection`, which has these keys).

        Args:
            root: folder that its `media_root` is relative to.
        """
        said = {one.name: getattr(source, one.name) for one in fields(cls) if one.name != "media_dir"}
        return cls(**said, media_dir=root / source.media_root)


class Adapter(Protocol):
    """One foreign shape. `detect` looks at keys only; at most one adapter detects a row."""

    name: str

    def detect(self, row: Mapping[str, Any]) -> bool: ...

    def convert(self, row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
        """Convert a row to our schema, without `id` where the foreign row has none.

        Raises:
            RowError: naming the key at fault.
        """
        ...


OWN = "vlmrl"
"""The shape of rows of our own schema."""
ADAPTERS: Catalogue[Adapter] = Catalogue("adapter", elsewhere={OWN: "vlmrl.data.adapters:own"})
"""Shapes of rows by name, in the order in which a row is tried. A plug-in adds its own with `ADAPTERS.add(name, adapter)`."""


class Foreign(Protocol):
    """What is done with the rows of one source that are not of our own schema."""

    def opened(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Parse messages that are JSON text into lists.

        Raises:
            RowError: `json`: text that begins like a list of messages and is no JSON.
        """
        ...

    def rows(self, row: Mapping[str, Any], shape: str | None, place: int) -> list[object]:
        """Convert an opened row to our schema, by the adapter of its `shape` or by the source's `columns`. `place` is its number within the
        source, from 1.

        Raises:
            RowError: naming what is wrong; `unknown_shape` where there is neither.
        """
        ...

    def learned(self) -> tuple[Sequence[str], Sequence[str]]:
        """Collect what the rows have told: mapped columns that no row has had, and columns of rows."""
        ...

    def learn(self, unseen: Sequence[str], known: Sequence[str]) -> None:
        """Take over what another process has `learned`."""
        ...

    def missing(self) -> str | None:
        """Describe what is wrong with `columns`, once all rows have been read; None if nothing is."""
        ...


FOREIGN: Catalogue[Callable[[ImportOptions], Foreign]] = Catalogue("importer")
"""Makes a `Foreign` for a source. It is asked for with the first row that is not of our own schema."""
