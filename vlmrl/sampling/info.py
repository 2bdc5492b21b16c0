"""Sample information for samplers: its task and its tags.

A sampler that needs it is registered with `needs=("rows",)` and gets a sequence of `SampleInfo` instead of ids as first argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from vlmrl.types import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleInfo:
    """One sample without its question, media and answer."""

    id: str
    task: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Scalars of the row's `meta` as text, nested keys joined by dots (`trajectory.length`), and `answer_type`."""


def describe(sample: Sample) -> SampleInfo:
    """Take the part of a sample that samplers see."""
    return SampleInfo(id=sample.id, task=sample.task, tags={"answer_type": sample.answer_type} | dict(_flat(sample.meta, "")))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        elif isinstance(value, str | int | float | bool):
            yield f"{prefix}{key}", str(value)


def group_by(rows: Sequence[SampleInfo], by: str, sampler: str) -> dict[str, list[str]]:
    """Group ids by task (`by="task"`) or by the value of a tag, groups in order of name, ids in order of the rows.

    Raises:
        ValueError: a row lacks the tag.
    """
    out: dict[str, list[str]] = {}
    for row in rows:
        if by != "task" and by not in row.tags:
            known = ", ".join(sorted(row.tags)) or "none"
            raise ValueError(f"sampler '{sampler}': sample '{row.id}' has no tag '{by}' (it has: {known}); add it to the row's meta")
        out.setdefault(row.task if by == "task" else row.tags[by], []).append(row.id)
    return dict(sorted(out.items()))
