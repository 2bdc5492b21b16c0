"""Finds what a source has to say of its rows, each setting with what was seen: columns, turns, media, answers, frames and times."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from vlmrl.errors import ConfigError, DataError
from vlmrl.extras.starter.answers import Answers, answers_of, form
from vlmrl.extras.starter.columns import mapping, told
from vlmrl.extras.starter.frames import frame_of
from vlmrl.extras.starter.look import ANY, MOST, Look, Reading, values_of
from vlmrl.extras.starter.media import ROOT, folder_of, folders, paths_of
from vlmrl.extras.starter.recipe import scalar, task_of
from vlmrl.extras.starter.tasks import KINDS, Kind, Medium
from vlmrl.extras.starter.times import unit_of
from vlmrl.types import Sample

STRUCTURE = ("unknown_shape", "missing_key", "bad_type")
"""Reasons of rows whose columns are not known."""
UNITS = ("frame", "time_unit")
"""Reasons of rows that are read once a unit is said."""
_ORDER = ("path", "media_root", "media_folder", "adapter", "columns", "turns", "answer_type", "frame", "axis", "time_unit", "time_fps")


@dataclass(kw_only=True)
class Found:
    """What was found of the rows of a source."""

    settings: dict[str, Any]
    """Of the source, beside its path and its media."""
    notes: dict[str, str] = field(default_factory=dict[str, str])
    """Setting -> what was seen, as a comment."""
    kind: Kind = KINDS["mixed"]
    media: list[Medium] = field(default_factory=list[Medium])
    media_dir: Path | None = None
    """Folder of the media; None where the rows have none, or hold them."""
    held: bool = False
    """Whether media stand in the rows."""
    looked: int = 0
    total: int = 0

    def lines(self, path: str, media: Mapping[str, str]) -> list[str]:
        """The source in YAML, each setting below what was seen.

        Args:
            media: `media_root` and `media_folder`.
        """
        out: list[str] = []
        for key, value in self._said(path, media):
            out += [f"# {self.notes[key]}"] if key in self.notes else []
            out.append(f"{key}: {value}")
        return out

    def told(self, path: str, media: Mapping[str, str]) -> list[str]:
        """The same for the terminal: each setting with what was seen behind it."""
        return [f"  {key}: {value}" + (f"  ({self.notes[key]})" if key in self.notes else "") for key, value in self._said(path, media)]

    def _said(self, path: str, media: Mapping[str, str]) -> list[tuple[str, str]]:
        """Settings of the source in the order of the recipe, in YAML."""
        said: dict[str, Any] = {"path": path, **media, **self.settings}
        keys = sorted(said, key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER))
        return [(key, _yaml(said[key])) for key in keys]


def find(look: Look, given: Mapping[str, Any], *, media_root: Path | None, task: str | None = None) -> Found:
    """Find what the source has to say.

    Args:
        given: settings of the source that stand as they are.
        media_root: folder of the media, if it is given.
        task: name of a starter, whose answers these rows have.

    Raises:
        ConfigError: the rows leave a choice, with the options that decide it.
        DataError: rows cannot be read.
    """
    found = Found(settings=dict(given), held=look.folder is not None, looked=len(look.raws), total=look.total)
    reading = _structure(look, found)
    reading = _media(look, found, reading, media_root)
    if reading.shape == "tasks":
        raise ConfigError(f"{look.path}: rows of an environment; copy one of its recipes, or write one (docs/environments.md)")
    faulty = [row for row in reading.bad if row.reason not in UNITS]
    if len(faulty) > MOST * reading.rows:
        raise DataError(f"{look.path}: {len(faulty)} of {reading.rows} rows cannot be read:{replace(reading, bad=faulty).problems()}")
    if reading.shape is not None and reading.shape != "vlmrl":
        found.notes["path"] = f"{_rows(found)} of the shape '{reading.shape}' (docs/data.md)"
    else:
        found.notes["path"] = f"{_rows(found)}{' of our own schema' if reading.shape == 'vlmrl' else ''}"
    _answers(look, found, reading, task)
    _units(look, found)
    last = look.read(found.settings, found.media_dir)
    if not last.good or last.share() > MOST:
        raise DataError(f"{look.path}: {len(last.bad)} of {last.rows} rows cannot be read as {_said(found)}:{last.problems()}")
    if "answer_type" not in found.settings:
        types = Counter(sample.answer_type for sample in last.good)
        found.notes["path"] += f"; they say their answer types themselves: {', '.join(f'{n} {name}' for name, n in types.most_common())}"
        found.kind = _kind_of(next(iter(types)), [], last.good) if len(types) == 1 else KINDS["mixed"]
    found.media = _shown(found, last.good)
    return found


def _rows(found: Found) -> str:
    return f"{found.total:,} rows" + (f", of which {found.looked} were looked at," if found.looked < found.total else "")


def _said(found: Found) -> str:
    return ", ".join(f"{key}={_yaml(value)}" for key, value in found.settings.items()) or "they are"


def _structure(look: Look, found: Found) -> Reading:
    """Columns and turns: the rows are read then, with their answers as they stand."""
    any_type = {"answer_type": ANY}
    reading = look.read({**found.settings, **any_type})
    if not {"columns", "adapter"} & set(found.settings) and reading.share(*STRUCTURE) > 0.5:
        columns = mapping(look.objects)
        found.settings["columns"] = columns
        found.notes["columns"] = "by the names of the columns; those that are not named go to 'meta'"
        reading = look.read({**found.settings, **any_type})
    if reading.missing is not None:
        raise DataError(f"{look.path}: {reading.missing}")
    if reading.share("turns") and "turns" not in found.settings:
        several = sum(row.reason == "turns" for row in reading.bad)
        for turns, what in (("split", "each answer is a row, with the turns before it as context"), ("last", "the last answer counts")):
            tried = look.read({**found.settings, **any_type, "turns": turns})
            if not tried.share("turns"):
                found.settings["turns"] = turns
                found.notes["turns"] = f"{several} of {reading.rows} conversations have several turns: {what}; also first, last or split"
                return tried
    return reading


def _media(look: Look, found: Found, reading: Reading, media_root: Path | None) -> Reading:
    """The folder of the media; the rows are read again with it."""
    any_type = {"answer_type": ANY}
    absolute = sum(row.reason == "forbidden" and " is absolute" in row.message for row in reading.bad) > reading.rows / 2
    if absolute:
        reading = look.read({**found.settings, **any_type}, ROOT)
    if look.folder is not None:
        if media_root is not None:
            raise ConfigError("--media-root: the media stand in the rows and are written to a folder of the recipe; leave it out")
        found.notes["media_folder"] = "pictures stand in the rows; they are written to this folder, each once"
        return reading
    paths = paths_of(reading.good)
    if not paths and reading.share(*UNITS) > 0.5:
        # Places in pixels of rows that say so: nothing is read before the pictures are there.
        paths = paths_of(look.read({**found.settings, **any_type, "frame": "norm1000"}).good)
        places = (paths_of(look.read({**found.settings, **any_type}, folder).good) for folder in folders(look.path))
        paths = paths or next((one for one in places if one), [])
    if not paths:
        return reading
    found.media_dir, found.notes["media_root"] = folder_of(paths, look.path, media_root, absolute=absolute)
    return look.read({**found.settings, **any_type}, found.media_dir)


def _answers(look: Look, found: Found, reading: Reading, task: str | None) -> None:
    """What the answers are, and how they are read."""
    values = values_of(reading.good)
    if "answer_type" not in found.settings and task is None and not any(sample.meta.get("options") for sample, _ in values):
        own = look.read(found.settings, found.media_dir)
        if not own.share("answer_type"):
            return  # the rows say it
    if not values:
        found.settings.pop("answer_type", None)
        return
    wanted = None if task is None else task_of(task).kind
    chosen = found.settings.get("answer_type")
    if chosen is None and wanted in ("bbox", "click", "point"):
        chosen = None if {form(value, sample) for sample, value in values} == {"box"} and wanted != "point" else KINDS[wanted].answer_type
    elif chosen is None and wanted is not None:
        chosen = KINDS[wanted].answer_type
    if chosen is not None:
        found.settings["answer_type"] = chosen
        if task is not None:
            found.notes["answer_type"] = f"as --task {task} says"
        found.kind = _kind_of(chosen, values, reading.good)
        return
    clicks = None if wanted not in ("bbox", "click") else wanted == "click"
    answers: Answers = answers_of(values, screens=_screens(found, reading.good), clicks=clicks)
    found.kind = KINDS[answers.kind]
    found.settings["answer_type"], found.notes["answer_type"] = answers.answer_type, answers.said
    if any(sample.answer_type != ANY for sample in reading.good):
        found.kind = KINDS["mixed"]
        found.notes["answer_type"] += "; the other rows say their own"


def _kind_of(answer_type: str, values: Sequence[tuple[Sample, Any]], good: Sequence[Sample]) -> Kind:
    """What a recipe says for a given answer type."""
    boxes = [sample for sample in good if sample.gt.get("boxes")] or [value for sample, value in values if form(value, sample) == "box"]
    if answer_type == "point" and boxes:
        return KINDS["click"]
    known = [kind for kind in KINDS.values() if kind.answer_type == answer_type]
    about = f"Questions with answers of the type {answer_type}, each paid by its measure."
    return known[0] if known else replace(KINDS["mixed"], about=about)


def _units(look: Look, found: Found) -> None:
    """Frame of boxes and points, and unit of times."""
    reading = look.read(found.settings, found.media_dir)
    if "frame" not in found.settings and reading.share("frame"):
        said, found.notes["frame"] = frame_of(look, found.settings, found.media_dir)
        found.settings.update(said)
    if reading.share("time_unit"):
        more, note = unit_of(look, found.settings, found.media_dir or Path("."))
        found.settings.update(more)
        if note is not None:
            found.notes["time_unit"] = note


def _screens(found: Found, good: Sequence[Sample]) -> bool:
    """Whether the pictures are called screens, by their column or by their files."""
    columns = cast("dict[str, Any]", found.settings.get("columns") or {})
    paths = paths_of(good)
    return "screen" in str(columns.get("images", "")).lower() or sum("screen" in path.lower() for path in paths) > len(paths) / 2


def _shown(found: Found, good: Sequence[Sample]) -> list[Medium]:
    """The kinds of media of the rows."""
    kinds = {ref.kind for sample in good for ref in sample.media}
    out: list[Medium] = []
    if "image" in kinds:
        out.append("screen" if found.kind in (KINDS["click"], KINDS["action"]) or _screens(found, good) else "image")
    return [*out, "video"] if "video" in kinds else out


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return told(cast("Mapping[str, str]", value))
    return scalar(value) if isinstance(value, str) else json.dumps(value)
