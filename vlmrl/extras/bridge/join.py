"""Joins what lmms-eval returns with the raw answers into our records. Pure.

Samples are joined by (task, document number): upstream's `doc_hash` is the same for all documents of a task.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlmrl.answers.tags import answer_view, parse
from vlmrl.errors import DataError
from vlmrl.evals.ask.evaluate import EvalOptions, RecordBuilder, status
from vlmrl.evals.score.paired import UPSTREAM
from vlmrl.evals.score.records import Record, Think, prompt_ids_hash, sample_hash, settings_json
from vlmrl.extras.bridge import functions
from vlmrl.extras.bridge.requests import Answer, Key

THEIRS = "upstream"
"""Answer type in the records of upstream's tasks, which our scorers do not read."""

_SHOWN = 5
_OF_SAMPLE = frozenset(
    {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "token_counts", "doc_hash", "input_media", functions.ERROR}
)
"""Keys of a logged sample that are no metrics."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """What records need beside samples and answers."""

    fingerprint: str
    model: str
    harness: str
    answer_format: str
    """That tasks of others were asked with."""
    seed: int
    tokenizer_len: Callable[[str], int]


def in_order(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Logged samples by document number; with several ranks upstream returns them rank after rank."""
    return sorted(samples, key=lambda sample: sample["doc_id"])


def check_errors(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Whether all documents of ours were scored.

    Raises:
        DataError: with those that could not be, and why.
    """
    problems = [f"task '{task}': {row[functions.ERROR]}" for task, rows in samples.items() for row in rows if row.get(functions.ERROR)]
    if problems:
        more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listing = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
        raise DataError(f"{len(problems)} answers could not be scored{listing}{more}\n  write the task files again, or mend the rows")


def records_of(task: str, samples: Sequence[Mapping[str, Any]], raw: Mapping[Key, Sequence[Answer]], reader: Reader) -> list[Record]:
    """The records of one task, by document and number of the answer. Upstream's metrics of a document stand in the scores of each of its
    records as `upstream/<metric>`; of several filters the later ones as `upstream/<metric>#2` and so on.

    Raises:
        DataError: a document has samples and no answers, or answers and no samples.
    """
    answers = {number: (split, own) for (name, split, number), own in raw.items() if name == task}
    found: dict[int, list[Mapping[str, Any]]] = {}
    for sample in in_order(samples):
        found.setdefault(int(sample["doc_id"]), []).append(sample)
    if set(found) != set(answers):
        alone = sorted(set(found) ^ set(answers))
        raise DataError(f"task '{task}': document {alone[0]} (and {len(alone) - 1} more) was answered and not scored, or the other way")
    out: list[Record] = []
    for number, rows in found.items():
        split, own = answers[number]
        upstream = _upstream(rows)
        doc = rows[0].get("doc", {})
        for k, answer in enumerate(own):
            if functions.is_ours(doc):
                record = _ours(doc, answer, k, reader)
            else:
                record = _theirs(f"{task}/{split}/{number}", answer, k, reader)
            out.append(dataclasses.replace(record, harness=reader.harness, scores={**record.scores, **upstream}))
    return out


def aggregated(results: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one task in upstream's `results`: `upstream/<metric>`, and `upstream/<metric>,<filter>` for filters that are not the
    default. Standard errors are left to our own bootstrap, and what is no finite number is left out."""
    out: dict[str, float] = {}
    for name, value in results.items():
        metric, _, filtered = name.partition(",")
        if "_stderr" in metric or metric in ("alias", functions.ERROR) or not _is_number(value):
            continue
        out[f"{UPSTREAM}{metric}" + (f",{filtered}" if filtered not in ("", "none") else "")] = float(value)
    return out


def _upstream(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    out: dict[str, float] = {}
    for place, row in enumerate(rows, start=1):
        suffix = "" if place == 1 else f"#{place}"
        out |= {f"{UPSTREAM}{name}{suffix}": float(value) for name, value in row.items() if name not in _OF_SAMPLE and _is_number(value)}
    return out


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _ours(doc: Mapping[str, Any], answer: Answer, k: int, reader: Reader) -> Record:
    """The record that native evaluation makes of this answer."""
    task = functions.task_of(doc)
    reading = RecordBuilder(
        options=EvalOptions(
            settings=answer.settings,
            seed=reader.seed,
            extraction=task.extraction,
            scoring=task.scoring,
            task_version=task.version,
        ),
        fingerprint=reader.fingerprint,
        model=reader.model,
        tokenizer_len=reader.tokenizer_len,
    )
    prompt = dataclasses.replace(answer.prompt, sample=functions.sample_of(doc), answer_format=task.asked)
    return reading.record(prompt, answer.generation, k)


def _theirs(name: str, answer: Answer, k: int, reader: Reader) -> Record:
    """A record of a document that upstream scored. What the thought says is read from the raw text, which upstream did not see."""
    prompt, generation = answer.prompt, answer.generation
    parsed = parse(generation.text, reader.answer_format)
    view = answer_view(generation.text) or None
    unclosed = view is None and "unclosed" in parsed.errors
    return Record(
        model=reader.model,
        sample_id=name,
        task=prompt.sample.task,
        cluster=prompt.sample.media[0].path if prompt.sample.media else name,
        sample_hash=sample_hash(prompt),
        prompt_ids_hash=prompt_ids_hash(prompt),
        answer_format=reader.answer_format,
        answer_type=THEIRS,
        text=generation.text,
        answer=answer.shown,
        status=status(view, None if view is None else (), truncated=generation.finish == "length" or unclosed),
        format_ok=parsed.format_ok,
        pred=None if view is None else (),
        gold=(),
        scores={},
        think=Think(
            has=parsed.thought is not None and bool(parsed.thought.strip()),
            tokens=reader.tokenizer_len(parsed.thought) if parsed.thought else 0,
        ),
        n_in=len(prompt.ids),
        n_out=generation.n_out,
        finish=generation.finish,
        unclosed=unclosed,
        fingerprint=reader.fingerprint,
        settings=settings_json(answer.settings),
        k=k,
        seed=reader.seed if answer.settings.temperature > 0 else None,
    )
