"""Paired comparison of two systems on the same questions: every metric with an interval and a test, and the questions that changed.

A question counts once, whatever the number of its answers; questions about one medium are resampled together. The terminal and the
pages show these numbers and no others.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vlmrl import rng
from vlmrl.errors import VlmrlError
from vlmrl.evals.score.measures import METRICS, parts_of
from vlmrl.evals.score.records import REFERENCE, Record, by_sample
from vlmrl.evals.score.values import AVERAGES, Answers, Of, Values, metric_values, question_values, value_of

if TYPE_CHECKING:
    from vlmrl.metrics.intervals import Test

UNKNOWN = "unknown"
"""What imported results do not say; a value may start so and go on with a hash of the part that is known. Equal to nothing."""
UPSTREAM = "upstream/"
"""Scores of another harness start so."""
RIGHT = 0.5
"""From here on a sample counts as right in the list of flips; for scores of 0 and 1 it makes no difference."""
LOWER_IS_BETTER = frozenset({"tokens", "truncation_rate", "count_error", "turns", "excess_turns"})


class Incomparable(VlmrlError):
    """Two sets of records are not answers to the same questions under the same settings."""

    exit_code = 65


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """One metric on both sides."""

    n: int
    """Pairs: questions to which the metric applies on both sides, or groups of questions for a metric of groups."""
    clusters: int
    a: float
    """Mean of the first system."""
    b: float
    difference: float
    """b - a."""
    low: float | None
    """95%, of the difference; None where there is no interval."""
    high: float | None
    p: float
    """Two-sided, of `test`."""
    test: Test
    """`McNemar`: exact, where every question has 0 or 1 on both sides and a medium of its own. `permutation`: sign flips of whole
    clusters."""
    method: str = ""
    """`Tango`, `BCa` or `percentile`; empty without an interval."""
    why: str = ""
    """Why there is none."""
    differ: int = 0
    """Pairs whose value differs."""

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies above or below 0, 0 where it contains 0 or there is none.

        Where all questions differ by the same there is no interval, and the test decides.
        """
        if self.low is None or self.high is None:
            from vlmrl.metrics.intervals import ALPHA, FLAT

            return (self.difference > 0) - (self.difference < 0) if self.why == FLAT and self.p < ALPHA else 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two systems on the same questions."""

    n: int
    """Questions."""
    gaps: Mapping[str, Gap]
    """By metric."""
    better: int
    """Questions where b has the larger main score (`AnswerType.main`)."""
    worse: int
    parts: Mapping[str, Comparison] = field(default_factory=dict)
    """`task=<name>`, `difficulty=<name>`, `category=<name>` -> that part of the questions, where there are several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """A sample that one side has right and the other wrong."""

    sample_id: str
    a: float
    """Mean over its answers."""
    b: float
    texts_a: tuple[str, ...]
    """As generated, one per answer."""
    texts_b: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """Something that has to be equal for a comparison to mean anything, and is not (or is not known)."""

    task: str
    what: str
    samples: int
    """Samples concerned."""
    detail: str
    """The first of them, or both values."""

    def text(self) -> str:
        return f"task '{self.task}': {self.what} on {self.samples} samples ({self.detail})"


def _prompt(x: Record, y: Record) -> str:
    """Hashes say that prompts differ, lengths say something about how."""
    if x.n_in != y.n_in:
        return f"{_number(x.n_in)} against {_number(y.n_in)} prompt tokens"
    return "other tokens" if x.n_in is None else f"{x.n_in} prompt tokens on both sides, but others"


def _question(x: Record, y: Record) -> str:
    """The part that differs, as far as records hold it."""
    if x.gold != y.gold:
        return f"gold answer {_numbers(x.gold)} against {_numbers(y.gold)}"
    if x.cluster != y.cluster:
        return f"medium '{x.cluster}' against '{y.cluster}'"
    return "its question, its media or their pixels"


def _settings(x: Record, y: Record) -> str:
    names = [name for name in sorted({*x.settings, *y.settings}) if x.settings.get(name) != y.settings.get(name)]
    return ", ".join(f"{name} {_setting(x, name)} against {_setting(y, name)}" for name in names)


def _setting(record: Record, name: str) -> str:
    """A record that says how it was generated names its engine only where it is not the reference engine."""
    value = record.settings.get(name, REFERENCE if name == "engine" and record.settings else None)
    return value if isinstance(value, str) else _number(value)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def _numbers(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:8])
    return f"({shown}{', ...' if len(values) > 8 else ''})" if values else "of another text"


_SAME: tuple[tuple[str, Callable[[Record], str], Callable[[Record, Record], str]], ...] = (
    ("the prompt", lambda r: r.prompt_ids_hash, _prompt),
    ("question, gold answer, media or pixel budget", lambda r: r.sample_hash, _question),
    ("the answer format", lambda r: r.answer_format, lambda x, y: f"{x.answer_format} against {y.answer_format}"),
    ("generation settings", lambda r: json.dumps(dict(r.settings), sort_keys=True) if r.settings else UNKNOWN, _settings),
    (
        "the task version",
        lambda r: str(r.task_version) if r.task_version > 0 else UNKNOWN,
        lambda x, y: f"{x.task_version} against {y.task_version}",
    ),
    ("the harness", lambda r: r.harness, lambda x, y: f"{x.harness} against {y.harness}"),
)
"""What must be equal, its value, and how two records differ in it, in words."""
PROMPT = _SAME[0][0]


def mismatches(task: str, a: Answers, b: Answers) -> list[Mismatch]:
    """List what differs or is unknown between the two sides of a task, each kind once, with the number of samples."""
    out: list[Mismatch] = []
    for side, mine, other in (("first", a, b), ("second", b, a)):
        alone = sorted(set(mine) - set(other))
        if alone:
            out.append(Mismatch(task=task, what=f"only the {side} has answers", samples=len(alone), detail=f"first: '{alone[0]}'"))
    common = [name for name in a if name in b]
    uneven = [name for name in common if len(a[name]) != len(b[name])]
    if uneven:
        detail = f"first: '{uneven[0]}' has {len(a[uneven[0]])} and {len(b[uneven[0]])}"
        out.append(Mismatch(task=task, what="the number of answers differs", samples=len(uneven), detail=detail))
    for what, of, words in _SAME:
        # as sets over a question's answers, which may be several
        values = {name: ({of(r) for r in a[name]}, {of(r) for r in b[name]}) for name in common}
        different = [name for name, (x, y) in values.items() if x != y]
        # two unknown values may look equal and need not be
        unknown = [name for name, (x, y) in values.items() if x == y and any(value.startswith(UNKNOWN) for value in x)]
        if different:
            x, y = next((x, y) for x in a[different[0]] for y in b[different[0]] if of(x) != of(y))
            detail = f"first: '{different[0]}', {words(x, y)}"
            out.append(Mismatch(task=task, what=f"{what} differs", samples=len(different), detail=detail))
        if unknown:
            out.append(Mismatch(task=task, what=f"{what} is unknown", samples=len(unknown), detail=f"first: '{unknown[0]}'"))
    return out


def compare(records_a: Sequence[Record], records_b: Sequence[Record], seed: int) -> Comparison:
    """Compare two systems on one set of questions, with its parts. `seed` decides the resampling.

    Raises:
        Incomparable: no questions, other questions, or asked in another way (`mismatches`).
    """
    a, b = by_sample(records_a), by_sample(records_b)
    if not a or not b:
        raise Incomparable("one of the two sets has no records; evaluate both on the same rows")
    problems = mismatches("", a, b)
    if problems:
        raise Incomparable("; ".join(f"{p.what} on {p.samples} samples ({p.detail})" for p in problems))
    parts = parts_of(r for rows in a.values() for r in rows)
    chosen = {part: dict.fromkeys(r.sample_id for r in rows) for part, rows in parts.items()}
    compared = {part: compare_answers({s: a[s] for s in names}, {s: b[s] for s in names}, seed) for part, names in chosen.items()}
    return dataclasses.replace(compare_answers(a, b, seed), parts=compared)


def compare_answers(a: Answers, b: Answers, seed: int) -> Comparison:
    """Compare every metric that applies on both sides, those of another harness last.

    Args:
        a, b: answers to the same samples.
    """
    better, worse = _changes(question_values(METRICS["score"], a), question_values(METRICS["score"], b))
    values_a, values_b = (metric_values(side) | _upstream_values(side) for side in (a, b))
    shared = {name: (values_a[name], values_b[name]) for name in values_a if name in values_b}
    # a generator per metric: adding a metric moves no other one's interval
    gaps = {
        name: gap(x, y, rng.generator(seed, "paired", name), shares=name not in AVERAGES)
        for name, (x, y) in shared.items()
        if x.keys() & y.keys()
    }
    return Comparison(n=len(a), gaps=gaps, better=better, worse=worse)


def _upstream_values(answers: Answers) -> dict[str, Values]:
    names = sorted({key for rows in answers.values() for r in rows for key in r.scores if key.startswith(UPSTREAM)})
    return {name: question_values(lambda r, name=name: r.scores.get(name), answers) for name in names}


def _changes(a: Values, b: Values) -> tuple[int, int]:
    """Questions with a larger and with a smaller value on the second side."""
    changes = [b[name][0] - a[name][0] for name in a if name in b]
    return sum(change > 0 for change in changes), sum(change < 0 for change in changes)


def gap(a: Values, b: Values, generator: np.random.Generator, *, shares: bool = True) -> Gap:
    """Compare the values of one metric, over what both sides have; at least one. `shares`: as of `intervals.mean_interval`."""
    names = [name for name in a if name in b]
    x, y, clusters = [a[name][0] for name in names], [b[name][0] for name in names], [a[name][1] for name in names]
    from vlmrl.metrics.intervals import difference_interval, difference_test  # what only checks a recipe computes none

    bounds = difference_interval(x, y, generator, clusters, shares=shares)
    p, test = difference_test(x, y, generator, clusters, shares=shares)
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    counts = {"n": len(names), "clusters": len(set(clusters)), "differ": sum(u != v for u, v in zip(x, y, strict=True))}
    of = {"low": bounds.low, "high": bounds.high, "method": bounds.method, "why": bounds.why}
    return Gap(**counts, **of, a=mean_x, b=mean_y, difference=mean_y - mean_x, p=p, test=test)


def flips(a: Answers, b: Answers, of: Of) -> list[Flip]:
    """Find samples with a value of at least `RIGHT` on one side only, largest change first, then by id."""
    out: list[Flip] = []
    for name, answers in a.items():
        x, y = value_of(of, answers), value_of(of, b[name])
        if x is not None and y is not None and (x >= RIGHT) != (y >= RIGHT):
            out.append(Flip(sample_id=name, a=x, b=y, texts_a=tuple(r.text for r in answers), texts_b=tuple(r.text for r in b[name])))
    return sorted(out, key=lambda flip: (-abs(flip.b - flip.a), flip.sample_id))


def plain(value: object) -> object:
    """Convert data classes to JSON values; what is not finite to None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def comparisons_of(records: Mapping[str, Sequence[Record]], seed: int) -> tuple[dict[tuple[str, str], Comparison], list[str]]:
    """Compare each stage with the one before it, and the last with the first; also say why a pair cannot be compared.

    Returns:
        ((before, after) -> comparison; one line for each pair that was refused).
    """
    names = list(records)
    wanted = list(pairwise(names)) + ([(names[0], names[-1])] if len(names) > 2 else [])
    out: dict[tuple[str, str], Comparison] = {}
    refused: list[str] = []
    for before, after in wanted:
        try:
            out[before, after] = compare(records[before], records[after], seed)
        except Incomparable as error:
            refused.append(f"{before} and {after} cannot be compared: {error}")
    return out, refused
