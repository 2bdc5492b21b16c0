"""Makes our records from the results of another harness. What they do not say stays unknown; nothing is guessed.

A text field that is unknown is or starts with `paired.UNKNOWN`, so that a comparison refuses; where a part of it is known, the hash of
that part follows. Counts and flags that are unknown are None.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmrl.answers.base import Scored
from vlmrl.answers.tags import Parsed, answer_view, parse
from vlmrl.errors import DataError
from vlmrl.evals.ask.evaluate import labels, status
from vlmrl.evals.score.paired import UNKNOWN, UPSTREAM
from vlmrl.evals.score.records import Record, Think
from vlmrl.evals.score.scorers import score
from vlmrl.types import Sample

_OPENED = re.compile(r"<think(?:ing)?>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What holds for all answers of a file."""

    where: str
    """The file, for messages."""
    task: str
    model: str
    harness: str
    """Name and version, or `unknown version of <name>`."""
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    """As in a record; empty if unknown."""
    task_version: int = 0
    """0 if unknown."""
    answer_format: str | None = None
    """Answer format that the prompt asked for, if the caller knows."""
    fingerprint: str = UNKNOWN
    """Of the weights."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer as the other harness wrote it down."""

    sample_id: str
    text: str
    """As near to what was generated as the file has it."""
    k: int = 0
    upstream: Mapping[str, float] = field(default_factory=dict[str, float])
    """Its own scores by name, without prefix."""
    prompt: str | None = None
    """Text of the prompt."""
    target: str | None = None
    thought: bool | None = None
    """Whether there was a thought, where the file keeps it apart from the text."""
    n_in: int | None = None
    n_out: int | None = None


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The records of one task, in the order of sample and answer, and what could not be taken over."""

    records: list[Record]
    notes: tuple[str, ...] = ()


def record_of(answer: Answer, origin: Origin, sample: Sample | None) -> Record:
    """One record. With the row, its answer is scored as ours are; without, only the upstream scores are there.

    Raises:
        DataError: the row cannot be scored.
    """
    text = answer.text
    parsed = parse(text, origin.answer_format or "think")
    read = answer_view(text) or None
    pred, gold, scores = (() if read is not None else None, (), {}) if sample is None else _scored(read, parsed, sample, origin)
    unclosed = parsed.thought is None and "unclosed" in parsed.errors and _OPENED.search(text) is not None
    has = bool(answer.thought) or (parsed.thought is not None and bool(parsed.thought.strip()))
    known = [answer.sample_id, answer.target] if sample is None else [sample.id, sample.question, sample.answer_type, dict(sample.gt)]
    fields: dict[str, Any] = {
        **{"model": origin.model, "task": origin.task, "fingerprint": origin.fingerprint, "harness": origin.harness},
        **{"sample_id": answer.sample_id if sample is None else sample.id, "k": answer.k},
        "cluster": sample.media[0].path if sample is not None and sample.media else answer.sample_id,
        "sample_hash": _unknown(known),
        "prompt_ids_hash": UNKNOWN if answer.prompt is None else _unknown([answer.prompt]),
        "answer_format": origin.answer_format or UNKNOWN,
        "answer_type": UNKNOWN if sample is None else sample.answer_type,
        **{"text": text, "answer": read, "status": status(read, pred, truncated=unclosed), "pred": pred, "gold": gold},
        "format_ok": parsed.format_ok if origin.answer_format is not None else None,
        "scores": {**scores, **{f"{UPSTREAM}{name}": value for name, value in answer.upstream.items()}},
        **{"think": Think(has=has, tokens=_tokens(has)), "n_in": answer.n_in, "n_out": answer.n_out, "finish": None, "unclosed": unclosed},
        **{"settings": dict(origin.settings), "task_version": origin.task_version},
        **({} if sample is None else labels(sample)),
    }
    return Record(**fields)


def _tokens(has: bool) -> Any:
    """Tokens of a thought: none without one, else unknown, for want of the tokenizer."""
    return None if has else 0


def _scored(read: str | None, parsed: Parsed, sample: Sample, origin: Origin) -> Scored:
    try:
        return score(read, parsed, sample)
    except ValueError as error:
        raise DataError(f"{origin.where}: its answers cannot be scored with these rows: {error}") from error


def _unknown(known: list[Any]) -> str:
    """Unknown as a whole, with the hash of what is known: different texts still show as different."""
    text = json.dumps(known, sort_keys=True, default=list)
    return f"{UNKNOWN}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def joined(answers: Iterable[Answer], origin: Origin, samples: Mapping[str, Sample] | None) -> list[Record]:
    """Records of answers in the order given, each with the row of its id.

    Raises:
        DataError: no answers, or answers without a row.
    """
    rows = list(answers)
    if not rows:
        raise DataError(f"{origin.where}: holds no answers")
    if samples is None:
        return [record_of(answer, origin, None) for answer in rows]
    lost = [answer.sample_id for answer in rows if answer.sample_id not in samples]
    if lost:
        raise DataError(
            f"{origin.where}: {len(lost)} of {len(rows)} answers have no row, the first has the id '{lost[0]}' (rows have ids such as "
            f"'{next(iter(samples), '')}'); give the rows that were asked, or join by the number of the row if ids are numbers from 0"
        )
    return [record_of(answer, origin, samples[answer.sample_id]) for answer in rows]


def number_of(value: object) -> float | None:
    """A score as a finite number; None for anything else. `true` is 1, and so is a table cell `1`, `1.0` or `True`."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("true", "false"):
            return float(word == "true")
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", word):
            return None
        value = float(word)
    if isinstance(value, (bool, int, float)) and math.isfinite(value):
        return float(value)
    return None
