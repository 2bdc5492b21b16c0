"""Rows of data as tasks of an environment: what it is given of a row, and the row that comes out of that on the other side.

A task of an environment that is registered with `rows=True` is a whole row with its question, media and gold answer. The folder that the
media lie in travels with it, but says where and not what: it is in no record and in no hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError, RowError
from vlmrl.protocols import environment
from vlmrl.types import MediaRef, Sample

PLACE = "media_root"
"""Key of a task: the folder, as an absolute path."""
ROW, FORMAT = "row", "answer_format"
ASKS = "asks"
"""Key of a task, and extra of an environment: the answer type in whose words a prompt asks for an action."""
TURNS = "max_turns"
"""Key of a task: most answers of its episodes, where these are fewer than the stage allows."""
TaskOf = Callable[[Sample], dict[str, Any]]
"""What an environment is given of a row."""


def takes_rows(name: str) -> bool:
    """Whether the tasks of a registered environment are whole rows."""
    return bool(environment.get(name).extra.get("rows", False))


def reads_answers(name: str) -> bool:
    """Whether a registered environment is given whole answers, tags and all: one that says so, and every one whose tasks are rows."""
    return takes_rows(name) or bool(environment.get(name).extra.get("reads_answers", False))


def asks_of(name: str) -> dict[str, str]:
    """What tasks of a registered environment say of its actions, so that prompts ask for the right thing; nothing where these are JSON."""
    asks: str | None = environment.get(name).extra.get(ASKS)
    return {} if asks is None else {ASKS: asks}


def task_maker(name: str, *, root: Path, answer_format: str) -> TaskOf:
    """How the rows of a source become tasks of this environment. `root`: the folder of data that media roots of rows are relative to."""
    return partial(row_task, root=root, answer_format=answer_format) if takes_rows(name) else partial(plain_task, asks=asks_of(name))


def plain_task(sample: Sample, asks: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Its id, and what stands under `environment` of its meta. `asks`: what `asks_of` says of the environment."""
    return {"id": sample.id, **(sample.meta.get("environment") or {}), **(asks or {})}


def row_task(sample: Sample, *, root: Path, answer_format: str) -> dict[str, Any]:
    """The whole row, as JSON values.

    Raises:
        RowError: the row is a conversation already.
    """
    if sample.history:
        raise RowError(
            "bad_value", f"row '{sample.id}' ({sample.source}): it has earlier turns; an episode with tools begins with one question"
        )
    row = {
        "task": sample.task,
        "answer_type": sample.answer_type,
        "question": sample.question,
        "answer": sample.answer,
        "gt": dict(sample.gt),
        "meta": dict(sample.meta),
        "media": [_ref_to_json(ref) for ref in sample.media],
    }
    return {"id": sample.id, ROW: row, FORMAT: answer_format, PLACE: str((root / sample.media_root).absolute())}


def sample_of(task: Mapping[str, Any]) -> Sample:
    """The row of a task of `row_task`, as far as asking and scoring need it."""
    row = task[ROW]
    return Sample(
        id=task["id"],
        task=row["task"],
        answer_type=row["answer_type"],
        question=row["question"],
        media=tuple(_ref_from_json(ref) for ref in row["media"]),
        answer=row["answer"],
        gt=row["gt"],
        meta=row["meta"],
    )


def recorded(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task as it stands in records and hashes: without the place of its media."""
    return {name: value for name, value in task.items() if name != PLACE}


def turns_of(task: Mapping[str, Any]) -> int | None:
    """Most answers of an episode of this task, where the task says it (`max_turns`).

    Raises:
        ConfigError: it is no whole number above 0.
    """
    turns = task.get(TURNS)
    if turns is not None and not (type(turns) is int and turns > 0):
        raise ConfigError(f"task '{task.get('id')}': max_turns is {turns!r}; give a whole number above 0")
    return turns


def answer_type_of(task: Mapping[str, Any], default: str) -> str:
    """Of the row that a task is; of a task that is none what it says that prompts ask for, else `default`."""
    row = task.get(ROW)
    return str(task.get(ASKS, default) if row is None else row["answer_type"])


def _ref_to_json(ref: MediaRef) -> dict[str, Any]:
    full = {
        "kind": ref.kind,
        "path": ref.path,
        "sha256": ref.sha256,
        "frames": [_ref_to_json(one) for one in ref.frames],
        "times": None if ref.times is None else list(ref.times),
        "fps": ref.fps,
    }
    return {name: value for name, value in full.items() if value not in (None, [])}


def _ref_from_json(value: Mapping[str, Any]) -> MediaRef:
    times = value.get("times")
    return MediaRef(
        kind=value["kind"],
        path=value["path"],
        sha256=value.get("sha256"),
        frames=tuple(_ref_from_json(one) for one in value.get("frames", ())),
        times=None if times is None else tuple(times),
        fps=value.get("fps"),
    )
