"""The table of questions over held-out evaluations and kept groups, and one question with everything that was answered to it.

A question is what `kept.record.content_id` digests, so two rows of one name are two questions, and a question of two runs is one. The table
is whole and columnar: a page filters and sorts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import parse
from vlmrl.errors import StorageError
from vlmrl.evals.score.measures import main_score
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.steps import compare_steps
from vlmrl.evals.score.table import visible
from vlmrl.evals.score.values import is_scored
from vlmrl.extras.pages.documents.drawn_group import as_json, drawn
from vlmrl.extras.pages.documents.pictures import STRIP, Pictures
from vlmrl.extras.pages.documents.shapes import Doc, stage_words, when
from vlmrl.extras.pages.documents.source import Source
from vlmrl.extras.pages.overlay import OBJECTS, MarkedFrames, Marks, Span, Target, answer_marks, gold_marks
from vlmrl.extras.pages.runfiles import Frames, safe_name

SAID = 60
"""Characters of an answer in the table."""
SIGNS = {"right": "✓", "wrong": "✗", "missing": "–", "surplus": "+"}
STATUS = {"no_tag": "no answer tag", "truncated": "cut off", "unparsable": "not readable"}
GROUPS = 40
"""Kept groups of one question whose answers are told; those beyond are left out from the middle of the run."""
MOST_SURPLUS = 6
"""Steps of a thought beyond the true ones that are shown; those beyond are counted."""


@dataclass(kw_only=True)
class Held:
    """The held-out answers of a source, by what they are about."""

    columns: list[str]
    """Stages of a run, or the model of an evaluation."""
    rows: dict[str, dict[str, list[Record]]] = field(default_factory=dict[str, dict[str, list[Record]]])
    """Content -> column -> answers, in the order of their numbers."""


def held_of(source: Source) -> Held:
    """The held-out answers of a source; made again only where a file of them has changed."""
    found, asked = source.records, source.asked
    stamp = [(name, len(rows), id(rows)) for name, rows in found.items()], len(asked)
    if source.caches.get("held", (None,))[0] != stamp:
        columns = [source.evaluation.model] if source.kind == "evaluation" else list(found)
        held = Held(columns=columns)
        for name, rows in found.items():
            column = columns[0] if source.kind == "evaluation" else name
            for record in sorted(rows, key=lambda r: r.k):
                held.rows.setdefault(content_of_record(record, asked), {}).setdefault(column, []).append(record)
        source.caches["held"] = stamp, held
    return source.caches["held"][1]


def content_of_record(record: Record, asked: Mapping[str, Mapping[str, str]]) -> str:
    """What tells the question of a record from all others. Of evaluations of earlier versions the hash of the sample, which has its id in
    it: such questions are never joined with another one's, and equal ones of two names stay two."""
    known = asked.get(record.sample_hash)
    return record.sample_hash if known is None else known["content"]


def kept_of(source: Source) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Content -> (address, line of the index) of the kept groups about it, in the order of their steps; only what is new is taken in."""
    stamp = source.kept.generation
    known, taken, out = source.caches.get("kept", (None, {}, {}))
    if known != stamp:
        taken, out = {}, {}
    changed: set[str] = set()
    for shard, place, entries in source.kept.lists():
        for entry in entries[taken.get(shard, 0) :]:
            out.setdefault(entry["content"], []).append((f"{place}-{entry['at']}", entry))
            changed.add(entry["content"])
        taken[shard] = len(entries)
    for content in changed:
        out[content].sort(key=lambda one: one[1]["global_step"])
    source.caches["kept"] = stamp, taken, out
    return out


def questions_doc(sources: Sequence[Source], pictures: Pictures) -> Doc:
    """The table of all questions of some sources."""
    table = _Table(sources=sources, pictures=pictures)
    for number, source in enumerate(sources):
        table.add_held(number, source)
        table.add_kept(number, source)
    return table.doc()


@dataclass(kw_only=True)
class _Table:
    """The columns of `questions_doc`, while they grow."""

    sources: Sequence[Source]
    pictures: Pictures
    place: dict[str, int] = field(default_factory=dict[str, int])
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    columns: list[Doc] = field(default_factory=list[Doc])
    held: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    kept: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    stages: dict[str, int] = field(default_factory=dict[str, int])

    def add_held(self, number: int, source: Source) -> None:
        """Columns and cells of a source's held-out answers."""
        found, pixels = held_of(source), source.pixels
        first = len(self.columns)
        for name in found.columns:
            shown = name if len(self.sources) == 1 else f"{source.name}/{name}"
            words = visible(name) if source.kind == "evaluation" else when(name)
            self.columns.append({"name": visible(shown), "run": source.name, "stage": visible(name), "words": words, "kind": "held"})
        for content, by_column in found.rows.items():
            record = next(iter(by_column.values()))[0]
            q = self._question(content, lambda record=record: _of_record(source, record, pixels.get(record.sample_id), self.pictures))
            self.asked[q]["held"] = True
            for name, rows in by_column.items():
                scores = [main_score(r) for r in rows if is_scored(r)]
                tokens = [r.n_out for r in rows if r.n_out is not None]
                said = rows[0].answer if rows[0].answer is not None else rows[0].text
                values = (_mean(scores), _mean([float(r.think.has) for r in rows]), _mean(tokens), visible(said.strip()[:SAID]))
                self.held.append((q, first + found.columns.index(name), *values))

    def add_kept(self, number: int, source: Source) -> None:
        """Rows of a source's kept groups."""
        for content, groups in kept_of(source).items():
            q = self._question(content, lambda entry=groups[0][1]: _of_entry(source, entry, self.pictures))
            for address, e in groups:
                stage = self.stages.setdefault(e["stage"], len(self.stages))
                values = (
                    e[key] for key in ("reward", "best", "spread", "surprise", "expected", "tokens", "cut", "used", "answers", "rewards")
                )
                said = [(visible(text), count, reward) for text, count, reward in e["said"]]
                helped = e["provenance"] != ["policy"]
                self.kept.append((q, number, stage, e["step"], e["global_step"], *values, said, helped, f"{source.name}/{address}"))

    def _question(self, content: str, make: Callable[[], dict[str, Any]]) -> int:
        if content not in self.place:
            self.place[content] = len(self.asked)
            self.asked.append({"id": content, "held": False, **make()})
        return self.place[content]

    def doc(self) -> Doc:
        """All of it."""
        keys = ("id", "sample", "task", "text", "gold", "difficulty", "category", "held", "src")
        own = ("reward", "best", "spread", "surprise", "expected", "tokens", "cut", "used", "answers", "rewards")
        solved = max((row[6] for row in self.kept if row[6] is not None), default=1.0)
        return {
            "columns": self.columns,
            "runs": [source.name for source in self.sources],
            "stages": [visible(name) for name in self.stages],
            "questions": {key: [one[key] for one in self.asked] for key in keys},
            "held": _columns(("q", "c", "score", "thinks", "tokens", "said"), self.held),
            "kept": _columns(("q", "run", "stage", "step", "global", *own, "said", "help", "address"), self.kept),
            "solved": solved,
            "states": states([(row[0], row[4], row[6]) for row in self.kept], solved),
        }


def states(kept: Sequence[tuple[int, int, float | None]], solved: float) -> dict[str, list[int]]:
    """Questions that were kept at several steps by what became of them.

    Args:
        kept: (question, global step, best reward) of each group.
        solved: best reward from which a question counts as solved.

    Returns:
        `never`: in no kept step. `lost`: before, and not in the last one. `learnt`: not in the first one, and in the last.
    """
    history: dict[int, list[tuple[int, bool]]] = {}
    for question, step, best in kept:
        if best is not None:
            history.setdefault(question, []).append((step, best >= solved - 1e-9))
    out: dict[str, list[int]] = {"never": [], "lost": [], "learnt": []}
    for question, seen in history.items():
        right = [one for _, one in sorted(seen, key=lambda one: one[0])]
        if not any(right):
            out["never"].append(question)
        elif not right[-1]:
            out["lost"].append(question)
        elif not right[0]:
            out["learnt"].append(question)
    return out


def _columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _of_record(source: Source, record: Record, frames: Frames | None, pictures: Pictures) -> dict[str, Any]:
    """What the table says of a held-out question."""
    known = source.asked.get(record.sample_hash, {})
    text = frames.question if frames is not None else known.get("question", "")
    return {
        "sample": visible(record.sample_id),
        "task": visible(record.task),
        "text": visible(text),
        "gold": visible(known.get("gold") or ", ".join(f"{value:g}" for value in record.gold)),
        "difficulty": record.difficulty,
        "category": record.category,
        "src": None if frames is None else pictures.first(source.name, _strip(frames), frames),
    }


def _of_entry(source: Source, entry: Mapping[str, Any], pictures: Pictures) -> dict[str, Any]:
    """What the table says of a question of training."""
    path = source.kept_medium(entry["media"][0]) if entry["media"] else None
    return {
        "sample": visible(entry["sample"]),
        "task": visible(entry["task"]),
        "text": visible(entry["question"]),
        "gold": visible(entry.get("gold", "")),
        "difficulty": None,
        "category": None,
        "src": pictures.first(source.name, entry["media"][0] if path else "", path),
    }


def _strip(frames: Frames) -> str:
    return STRIP + safe_name(frames.sample_id)[-10:]


def question_doc(content: str, sources: Sequence[Source], pictures: Pictures) -> Doc:
    """One question, with the answers of all sources.

    Raises:
        StorageError: nothing was asked that has this digest, or a file is damaged.
    """
    parts = [part for source in sources for part in _parts(content, source, pictures)]
    if not parts:
        raise StorageError(f"no question has the digest {content!r:.40}")
    base = max((part["question"] for part in parts), key=lambda one: sum(m is not None for m in one["media"]))
    return base | {
        "id": content,
        "answers": [answer for part in parts for answer in part["answers"]],
        "prompts": [prompt for part in parts for prompt in part["prompts"]],
        "steps": next((part["steps"] for part in parts if part["steps"] is not None), None),
    }


def _parts(content: str, source: Source, pictures: Pictures) -> Iterator[Doc]:
    answered = held_of(source).rows.get(content)
    if answered is not None:
        yield _held_part(source, answered, pictures)
    groups = kept_of(source).get(content, [])
    if len(groups) > GROUPS:
        groups = [*groups[: GROUPS // 2], *groups[-GROUPS // 2 :]]
    for address, entry in groups:
        yield _kept_part(source, address, entry, pictures)


def _held_part(source: Source, answered: Mapping[str, Sequence[Record]], pictures: Pictures) -> Doc:
    first = next(iter(answered.values()))[0]
    frames = source.pixels.get(first.sample_id)
    said = _of_record(source, first, frames, pictures)
    gold = _gold(frames, first)
    medium = None if frames is None else pictures.medium(source.name, _strip(frames), frames)
    return {
        "question": {key: said[key] for key in ("sample", "task", "text", "gold", "difficulty", "category")}
        | {"type": first.answer_type, "media": [medium], "marks": marks_doc(gold)},
        "answers": [_answer(source, column, record, frames) for column, rows in answered.items() for record in rows],
        "prompts": _prompts(source, answered),
        "steps": None if frames is None or not frames.steps else steps_doc(frames, answered),
    }


def _gold(frames: Frames | None, record: Record) -> Marks:
    """The marks of the truth; of frames that an earlier version kept without the row's words on them, its span of time alone."""
    if frames is None or frames.target is not None:
        return Marks() if frames is None or frames.target is None else gold_marks(frames.target, frames.shown)
    spans = () if frames.gold is None else (Span(start=frames.gold[0], end=frames.gold[1]),)
    kind = ANSWER_TYPES.get(record.answer_type)
    lost = ("no marks: these frames were kept without the row's coordinate frame; evaluate again",)
    return Marks(spans=spans, problems=lost if kind is not None and kind.in_frame else ())


def _answer(source: Source, column: str, record: Record, frames: Frames | None) -> Doc:
    """A held-out answer."""
    read = parse(record.text, record.answer_format)
    return {
        "run": source.name,
        "where": visible(column) if source.kind == "evaluation" else when(column),
        "kind": "held",
        "stage": visible(column),
        "step": None,
        "k": record.k,
        "text": visible(record.text),
        "answer": None if record.answer is None else visible(record.answer),
        "thought": None if read.thought is None else visible(read.thought),
        "score": main_score(record) if is_scored(record) else None,
        "status": STATUS.get(record.status, "" if record.status == "ok" else record.status),
        "tokens": record.n_out,
        "advantage": None,
        "marks": marks_doc(_said(record, frames)),
        "group": None,
    }


def _said(record: Record, frames: Frames | None) -> Marks:
    """The marks of one answer; without a target its spans of time, which need no frame."""
    if record.answer_type not in ANSWER_TYPES or (record.answer is None and (frames is None or frames.target is None)):
        return Marks()
    shown = MarkedFrames() if frames is None else frames.shown
    if frames is None or frames.target is None:
        return Marks(spans=answer_marks(Target(answer_type=record.answer_type, gt={}), shown, record.answer).spans)
    thought = parse(record.text, record.answer_format).thought if OBJECTS in frames.target.gt else None
    return answer_marks(frames.target, shown, record.answer, thought)


def _prompts(source: Source, answered: Mapping[str, Sequence[Record]]) -> list[Doc]:
    """How the question was put; several where models were asked differently, as after other answer formats."""
    found: dict[str, list[str]] = {}
    for column, rows in answered.items():
        if rows[0].prompt_ids_hash in source.prompts:
            found.setdefault(rows[0].prompt_ids_hash, []).append(visible(column))
    return [
        {
            "who": "" if len(columns) == len(answered) else ", ".join(columns),
            "pieces": [[visible(text), count] for text, count in source.prompts[name]],
        }
        for name, columns in found.items()
    ]


def steps_doc(frames: Frames, answered: Mapping[str, Sequence[Record]]) -> Doc:
    """The steps of thoughts under the seconds that they are about, with a line for each answer."""
    lines: list[Doc] = []
    for column, rows in answered.items():
        compared = compare_steps(parse(rows[0].text, rows[0].answer_format).thought, frames.steps)
        shown = compared[: len(frames.steps) + MOST_SURPLUS]
        said = ["missing" if one.said is None else visible(one.said)[:SAID] or "(nothing)" for one in shown]
        cells = [{"kind": one.kind, "text": f"{SIGNS[one.kind]} {text}"} for one, text in zip(shown, said, strict=True)]
        kinds = [one.kind for one in compared]
        more = f", {kinds.count('surplus')} surplus" if "surplus" in kinds else ""
        note = f"{kinds.count('right')} of {len(frames.steps)} right{more}" if compared else "no thought"
        lines.append({"who": when(column), "cells": cells, "note": note})
    return {"columns": [{"label": f"{one.time:g} s", "text": visible(one.text)[:SAID]} for one in frames.steps], "lines": lines}


def _kept_part(source: Source, address: str, entry: Mapping[str, Any], pictures: Pictures) -> Doc:
    group = group_doc(source, address, pictures)
    record, marks = group["record"], group["marks"]
    where = group["words"]
    question = {
        **{key: visible(str(record[key])) for key in ("sample", "task", "gold")},
        **{"text": visible(str(record["question"])), "type": record["answer_type"], "difficulty": None, "category": None},
        **{"media": group["media"], "marks": marks["gold"]},
    }
    answers = [
        {
            **{"run": source.name, "where": where, "kind": "kept", "stage": visible(str(record["stage"])), "step": record["step"]},
            **{"k": answer["k"], "text": visible(answer["text"]), "answer": _shown(read["answer"]), "thought": _shown(read["thought"])},
            **{"score": answer["reward"], "status": "cut off" if answer["finish"] == "length" else "", "tokens": len(answer["tokens"])},
            **{"advantage": answer["advantage"], "marks": own, "group": f"{source.name}/{address}"},
        }
        for answer, read, own in zip(record["answers"], marks["read"], marks["answers"], strict=True)
    ]
    return {"question": question, "answers": answers, "prompts": [], "steps": None}


def _shown(text: str | None) -> str | None:
    return None if text is None else visible(text)


def group_doc(source: Source, address: str, pictures: Pictures) -> Doc:
    """A whole kept group with its media and the marks on them.

    Raises:
        StorageError: there is none, or its file is damaged.
    """
    from vlmrl.extras.pages.kept import media
    from vlmrl.extras.pages.kept.record import content_of, media_of

    record = source.kept.record(address)
    try:
        paths = {key: source.kept_medium(key) for key in media_of(record)}
        infos = [None if (path := paths[one["key"]]) is None else media.info(path) for one in record["media"]]
        marks = drawn(record, infos)
        shown = {key: pictures.medium(source.name, key, path) for key, path in paths.items()}
        own = [one["key"] for one in record["media"]]
        return {
            **{"address": f"{source.name}/{address}", "run": source.name, "question": content_of(record), "record": record},
            **{"words": f"{stage_words(record['stage'])}, step {record['step']}", "media": [shown[key] for key in own]},
            **{"turns": {key: value for key, value in shown.items() if key not in own}, "marks": marks},
            **_beside(source, address, record["global_step"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StorageError(f"{source.path / 'groups'}: the group at {address} is not as it was written: {error!r:.200}") from error


def _beside(source: Source, address: str, step: int) -> Doc:
    """The groups before and after it in the same step."""
    order = [place for place, entry in source.kept.entries() if entry["global_step"] == step]
    at = order.index(address)
    names = [f"group/{source.name}/{order[i]}" if 0 <= i < len(order) else None for i in (at - 1, at + 1)]
    return {"before": names[0], "after": names[1]}


def marks_doc(marks: Marks) -> Doc:
    """Marks as JSON values."""
    return as_json(marks)
