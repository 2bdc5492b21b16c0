"""The table of questions over held-out evaluations and kept groups, and one question with everything that was answered to it.

A question is what `kept.record.content_id` digests, so two rows of one name are two questions, and a question of two runs is one. The table
is whole and columnar: a page filters and sorts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.answers.tags import parse
from vlmrl.errors import StorageError
from vlmrl.evals.score.measures import main_score
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.steps import TrueStep, compare_steps
from vlmrl.evals.score.values import is_scored
from vlmrl.extras.pages.documents.pictures import Pictures
from vlmrl.extras.pages.documents.shapes import Doc, stage_words, when
from vlmrl.extras.pages.documents.source import Source
from vlmrl.extras.pages.kept.media import opened
from vlmrl.extras.pages.kept.record import content_of, media_of
from vlmrl.extras.pages.overlay import marks_of

SAID = 60
"""Characters of an answer in the table."""
SIGNS = {"right": "✓", "wrong": "✗", "missing": "–", "surplus": "+"}
STATUS = {"ok": "", "no_tag": "no answer tag", "truncated": "cut off", "unparsable": "not readable"}
GROUPS = 40
"""Kept groups of one question whose answers are told; those beyond are left out from the middle of the run."""
MOST_SURPLUS = 6
"""Steps of a thought beyond the true ones that are shown; those beyond are counted."""
ASKED = ("id", "sample", "task", "text", "gold", "difficulty", "category", "held", "src")
NUMBERS = ("step", "global_step", "reward", "best", "spread", "surprise", "expected", "tokens", "cut", "used", "answers")
OF_INDEX = (*NUMBERS, "right", "rewards", "said")
"""What the table has of a line of the index."""


@dataclass(kw_only=True)
class Held:
    """The held-out answers of a source, by what they are about."""

    columns: list[str]
    """Stages of a run, or the model of an evaluation."""
    rows: dict[str, dict[str, list[Record]]] = field(default_factory=dict[str, dict[str, list[Record]]])
    """Content -> column -> answers, in the order of their numbers."""


def held_of(source: Source) -> Held:
    """The held-out answers of a source; made again only where a file of them has changed. What tells a question from all others is its
    `content`; of evaluations of earlier versions the hash of the sample, so such questions are never joined with another one's."""
    found, asked = source.records, source.asked

    def make() -> Held:
        held = Held(columns=[source.evaluation.model] if source.kind == "evaluation" else list(found))
        for name, rows in found.items():
            column = held.columns[0] if source.kind == "evaluation" else name
            for record in sorted(rows, key=lambda r: r.k):
                content = asked.get(record.sample_hash, {}).get("content", record.sample_hash)
                held.rows.setdefault(content, {}).setdefault(column, []).append(record)
        return held

    return source.once("held", ([(name, len(rows), id(rows)) for name, rows in found.items()], len(asked)), make)


def kept_of(source: Source) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Content -> (address, line of the index) of the kept groups about it, in the order of their steps."""

    def make() -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
        out: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        for address, entry in sorted(source.kept.entries(), key=lambda one: one[1]["global_step"]):
            out.setdefault(entry["content"], []).append((address, entry))
        return out

    return source.once("kept", source.kept.version, make)


def questions_doc(sources: Sequence[Source], pictures: Pictures) -> Doc:
    """The table of all questions of some sources."""
    asked: dict[str, Doc] = {}
    columns: list[Doc] = []
    held: list[tuple[Any, ...]] = []
    kept: list[tuple[Any, ...]] = []

    def place(content: str, make: Callable[[], Doc]) -> int:
        if content not in asked:
            asked[content] = {"id": content, "held": False, "n": len(asked), **make()}
        return asked[content]["n"]

    for number, source in enumerate(sources):
        found, first = held_of(source), len(columns)
        for name in found.columns:
            shown = name if len(sources) == 1 else f"{source.name}/{name}"
            columns.append({"name": shown, "run": source.name, "words": name if source.kind == "evaluation" else when(name)})
        for content, by_column in found.rows.items():
            record = next(iter(by_column.values()))[0]
            q = place(content, partial(_of_record, source, record, pictures))
            asked[content]["held"] = True
            held += [(q, first + found.columns.index(name), *_cell(rows)) for name, rows in by_column.items()]
        for content, groups in kept_of(source).items():
            q = place(content, partial(_of_entry, source, groups[0][1], pictures))
            kept += [
                (q, number, e["provenance"] != ["policy"], f"{source.name}/{address}", *(e.get(key) for key in OF_INDEX))
                for address, e in groups
            ]
    return {
        "columns": columns,
        "runs": [source.name for source in sources],
        "questions": {key: [one[key] for one in asked.values()] for key in ASKED},
        "held": _columns(("q", "c", "score", "thinks", "tokens", "said"), held),
        "kept": _columns(("q", "run", "help", "address", *(key.removesuffix("_step") for key in OF_INDEX)), kept),
    }


def _columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _cell(rows: Sequence[Record]) -> tuple[Any, ...]:
    """Mean score, share with a thought, mean tokens and the first answer of a question in a column."""
    said = rows[0].text if rows[0].answer is None else rows[0].answer
    scores, tokens = [main_score(r) for r in rows if is_scored(r)], [r.n_out for r in rows if r.n_out is not None]
    return _mean(scores), _mean([float(r.think.has) for r in rows]), _mean(tokens), said.strip()[:SAID]


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _of_record(source: Source, record: Record, pictures: Pictures) -> Doc:
    """What the table says of a held-out question."""
    known = source.asked.get(record.sample_hash, {})
    gold = known.get("gold") or ", ".join(f"{value:g}" for value in record.gold)
    said = {"sample": record.sample_id, "task": record.task, "text": known.get("question", ""), "gold": gold}
    src = _small(source, [one["key"] for one in known.get("media", ())], pictures)
    return {**said, "difficulty": record.difficulty, "category": record.category, "src": src}


def _of_entry(source: Source, entry: Mapping[str, Any], pictures: Pictures) -> Doc:
    """What the table says of a question of training. A page that is one file has no small pictures of these."""
    said = {"sample": entry["sample"], "task": entry["task"], "text": entry["question"], "gold": entry.get("gold", "")}
    return {**said, "difficulty": None, "category": None, "src": None if pictures.inline else _small(source, entry["media"], pictures)}


def _small(source: Source, keys: Sequence[str], pictures: Pictures) -> str | None:
    return pictures.first(source.name, keys[0], source.medium(keys[0])) if keys else None


def _info(files: Mapping[str, Path | None]) -> Doc | None:
    """What is known of the first of some media."""
    first = next(iter(files.values()), None)
    return None if first is None else opened(first).info


def question_doc(content: str, sources: Sequence[Source], pictures: Pictures) -> Doc:
    """One question, with the answers of all sources."""
    parts = [part for source in sources for part in _parts(content, source, pictures)]
    if not parts:
        raise StorageError(f"no question has the digest {content!r:.40}")
    base = max((part["question"] for part in parts), key=lambda one: sum(m is not None for m in one["media"]))
    return base | {
        "id": content,
        "answers": [answer for part in parts for answer in part["answers"]],
        "prompts": [prompt for part in parts for prompt in part.get("prompts", ())],
        "steps": next((part["steps"] for part in parts if part.get("steps")), None),
    }


def _parts(content: str, source: Source, pictures: Pictures) -> Iterator[Doc]:
    answered = held_of(source).rows.get(content)
    if answered is not None:
        yield _held_part(source, answered, pictures)
    groups = kept_of(source).get(content, [])
    if len(groups) > GROUPS:
        groups = [*groups[: GROUPS // 2], *groups[-GROUPS // 2 :]]
    for address, _ in groups:
        yield _kept_part(source, address, pictures)


def _held_part(source: Source, answered: Mapping[str, Sequence[Record]], pictures: Pictures) -> Doc:
    rows = [(column, record) for column, records in answered.items() for record in records]
    first = rows[0][1]
    known = source.asked.get(first.sample_hash, {})
    files = {one["key"]: source.medium(one["key"]) for one in known.get("media", ())}
    said = [(record.answer, parse(record.text, record.answer_format).thought) for _, record in rows]
    gold, marks = None, [None] * len(rows)
    if files:
        gold, marks = marks_of({**known, "answer_type": first.answer_type}, _info(files), said)
    answers = [
        {
            **{"run": source.name, "where": column if source.kind == "evaluation" else when(column), "kind": "held", "k": record.k},
            **{"text": record.text, "answer": record.answer, "score": main_score(record) if is_scored(record) else None},
            **{"status": STATUS.get(record.status, record.status), "tokens": record.n_out, "marks": drawn, "group": None},
        }
        for (column, record), drawn in zip(rows, marks, strict=True)
    ]
    return {
        "question": {**_of_record(source, first, pictures), "type": first.answer_type, "marks": gold}
        | {"media": [pictures.medium(source.name, key, file) for key, file in files.items()] if "media" in known else [None]},
        "answers": answers,
        "prompts": _prompts(source, answered),
        "steps": steps_doc([TrueStep(**one) for one in known["steps"]], answered) if known.get("steps") else None,
    }


def _prompts(source: Source, answered: Mapping[str, Sequence[Record]]) -> list[Doc]:
    """How the question was put; several where models were asked differently, as after other answer formats."""
    found: dict[str, list[str]] = {}
    for column, rows in answered.items():
        if rows[0].prompt_ids_hash in source.prompts:
            found.setdefault(rows[0].prompt_ids_hash, []).append(column)
    return [
        {"who": "" if len(columns) == len(answered) else ", ".join(columns), "pieces": source.prompts[name]["prompt"]}
        for name, columns in found.items()
    ]


def steps_doc(steps: Sequence[TrueStep], answered: Mapping[str, Sequence[Record]]) -> Doc:
    """The steps of thoughts under the seconds that they are about, as a table with a row for each answer."""
    rows: list[list[Any]] = []
    for column, records in answered.items():
        compared = compare_steps(parse(records[0].text, records[0].answer_format).thought, steps)
        kinds = [one.kind for one in compared]
        more = f", {kinds.count('surplus')} surplus" if "surplus" in kinds else ""
        note = f"{kinds.count('right')} of {len(steps)} right{more}" if compared else "no thought"
        said = [(one.kind, "missing" if one.said is None else one.said[:SAID] or "(nothing)") for one in compared]
        cells = [{"kind": kind, "text": f"{SIGNS[kind]} {text}"} for kind, text in said[: len(steps) + MOST_SURPLUS]]
        rows.append([{"text": when(column), "small": note}, *cells])
    header = [{"text": f"{one.time:g} s", "small": one.text[:SAID]} for one in steps]
    return {"title": "Thoughts against the true ones", "header": ["", *header], "rows": rows}


def _kept_part(source: Source, address: str, pictures: Pictures) -> Doc:
    group = group_doc(source, address, pictures)
    record = group["record"]
    question = {
        **{key: record[key] for key in ("sample", "task", "gold")},
        **{"text": record["question"], "type": record["answer_type"], "difficulty": None, "category": None},
        **{"media": group["media"], "marks": group["marks"]},
    }
    answers = [
        {
            **{"run": source.name, "where": group["words"], "kind": "kept", "score": answer["reward"]},
            **{key: answer[key] for key in ("k", "text", "answer", "marks")},
            **{"status": "cut off" if answer["finish"] == "length" else "", "tokens": len(answer["tokens"])},
            "group": f"{source.name}/{address}",
        }
        for answer in group["answers"]
    ]
    return {"question": question, "answers": answers}


def group_doc(source: Source, address: str, pictures: Pictures) -> Doc:
    """A whole kept group with its media and the marks on them."""
    record = source.kept.record(address)
    try:
        files = {key: source.medium(key) for key in media_of(record)}
        shown = {key: pictures.medium(source.name, key, file) for key, file in files.items()}
        own, answers = [one["key"] for one in record["media"]], record.pop("answers")
        read = [parse(str(answer["text"]), str(record["answer_format"])) for answer in answers]
        gold, marks = marks_of(record, _info({key: files[key] for key in own}), [(one.answer, one.thought) for one in read])
        return {
            **{"question": content_of(record), "record": record, "words": f"{stage_words(record['stage'])}, step {record['step']}"},
            **{"media": [shown[key] for key in own], "turns": {key: value for key, value in shown.items() if key not in own}},
            "marks": gold,
            "answers": [
                {**answer, "answer": one.answer, "format_ok": one.format_ok, "errors": list(one.errors), "marks": drawn}
                for answer, one, drawn in zip(answers, read, marks, strict=True)
            ],
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StorageError(f"{source.path / 'groups'}: the group at {address} is not as it was written: {error!r:.200}") from error
