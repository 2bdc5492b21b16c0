"""Marks on the frames of a kept group: gold and answers, by the readers and the drawing of `pages.overlay`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import parse
from vlmrl.extras.pages.overlay import MarkedFrames, Marks, answer_marks, gold_marks, target_of
from vlmrl.types import MediaRef, Sample


def drawn(record: Mapping[str, Any], infos: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """`gold` and `answers` (one each) as marks, and what was read as each answer (`read`).

    Args:
        infos: what is known of the record's media (`pages.kept.media.info`); None for one that was not kept.
    """
    read = [parse(str(answer["text"]), str(record["answer_format"])) for answer in record["answers"]]
    said = [{"thought": one.thought, "answer": one.answer, "format_ok": one.format_ok, "errors": list(one.errors)} for one in read]
    if record["answer_type"] not in ANSWER_TYPES:
        problem = f"nothing is drawn: the answer type {record['answer_type']!r} is one of a plug-in, which the viewer does not run"
        none = {"shapes": [], "spans": [], "problems": [problem]}
        return {"gold": none, "answers": [{"shapes": [], "spans": [], "problems": []} for _ in read], "read": said}
    first = infos[0] if infos else None
    sample = Sample(
        id=str(record["sample"]),
        task=str(record["task"]),
        answer_type=str(record["answer_type"]),
        question=str(record["question"]),
        media=tuple(MediaRef(kind=one["kind"], path="-") for one in record["media"]),
        answer=str(record["gold"]),
        gt=record["gt"],
        meta=record["meta"],
    )
    target = target_of(sample, None if first is None else (int(first["original"][0]), int(first["original"][1])))
    times = None if first is None else first["times"]
    shown = MarkedFrames(indices=(0,) if first is None else tuple(first["indices"]), times=None if times is None else tuple(times))
    return {
        "gold": as_json(gold_marks(target, shown)),
        "answers": [as_json(answer_marks(target, shown, one.answer, one.thought)) for one in read],
        "read": said,
    }


def as_json(marks: Marks) -> dict[str, Any]:
    """Marks as JSON values."""
    return dataclasses.asdict(marks)
