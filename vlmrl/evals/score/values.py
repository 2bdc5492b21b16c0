"""Values of a metric, one per question or per group of questions: what is averaged, resampled and paired.

A question counts once. Of several answers to it a metric takes the mean, so that asking more often makes no number look surer. A metric
of a set (pass@k, circular evaluation) has a value per question, group or category.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from vlmrl.answers.exact_text import normalise
from vlmrl.evals.score.measures import METRICS, applicable, main_score
from vlmrl.evals.score.records import Record
from vlmrl.metrics.stats import majority, pass_all_k, pass_at_k

Answers = Mapping[str, Sequence[Record]]
"""Sample id -> its answers (`records.by_sample`)."""
Values = dict[str, tuple[float, str]]
"""Question, group or category -> (value, cluster it is resampled with)."""
Of = Callable[[Record], float | None]


def metric_values(answers: Answers, only: Collection[str] | None = None) -> dict[str, Values]:
    """Compute every metric that applies, or those of `only`, by the names of `METRICS` and `GROUPED`.

    Returns:
        Metric -> its value and cluster per question, group or category.
    """
    # most metrics are those of other types of answers: they are not asked
    asked = set(applicable({r.answer_type for rows in answers.values() for r in rows})) & set(METRICS if only is None else only)
    out = {name: question_values(of, answers) for name, of in METRICS.items() if name in asked}
    if all(is_scored(r) for rows in answers.values() for r in rows):
        out |= {name: of(answers) for name, of in GROUPED.items() if only is None or name in only}
    return {name: values for name, values in out.items() if values}


def question_values(of: Of, answers: Answers) -> Values:
    """Average a metric over the answers to each question to which it applies; questions where it applies to none are left out."""
    # nearly always a question has one answer, and this is called for every question and metric
    found = ((name, of(rows[0]) if len(rows) == 1 else value_of(of, rows), rows[0].cluster) for name, rows in answers.items())
    return {name: (value, cluster) for name, value, cluster in found if value is not None}


def value_of(of: Of, answers: Sequence[Record]) -> float | None:
    """Average a metric over the answers to which it applies; None if it applies to none."""
    found = [value for r in answers if (value := of(r)) is not None]
    return sum(found) / len(found) if found else None


def is_scored(record: Record) -> bool:
    """Check whether our own scorers have seen it. They have not where results were imported without the rows."""
    return METRICS["score"](record) is not None


def right(record: Record) -> bool:
    """Check whether the main score is full: what counts as solved."""
    return main_score(record) >= 1


def all_right(answers: Answers) -> Values:
    """Check whether all questions of a group are answered right: circular evaluation over the rotations of one question (MMBench,
    arXiv:2307.06281; SAT), pairs of pictures (MMVP, arXiv:2401.06209), acc+ of MME (arXiv:2306.13394).

    Of several answers to a question the first counts. No values without groups.
    """
    return {group: (float(all(right(r) for r in rows)), rows[0].cluster) for group, rows in _groups(answers).items()}


def first_right(answers: Answers) -> Values:
    """Take the main score of the first question of each group, by sample id: the plain score beside `all_right`. None without groups."""
    return {group: (main_score(rows[0]), rows[0].cluster) for group, rows in _groups(answers).items()}


def _groups(answers: Answers) -> dict[str, list[Record]]:
    """Group -> the first answer to each of its questions, by sample id."""
    out: dict[str, list[Record]] = {}
    for _, rows in sorted(answers.items()):
        if rows[0].group is not None:
            out.setdefault(rows[0].group, []).append(rows[0])
    return out


def macro(answers: Answers) -> Values:
    """Average the main score of the questions of each category (lmms-eval's average of MMStar). No values without several categories.

    Each category is its own cluster: the interval says how much the categories differ.
    """
    categories: dict[str, list[float]] = {}
    for rows in answers.values():
        if rows[0].category is not None:
            categories.setdefault(rows[0].category, []).append(sum(map(main_score, rows)) / len(rows))
    return {name: (sum(v) / len(v), name) for name, v in sorted(categories.items())} if len(categories) > 1 else {}


def at_k(k: int, estimate: Callable[[int, int, int], float]) -> Callable[[Answers], Values]:
    """Make pass@k (or pass^k) of each question from its n >= k answers, unbiased (arXiv:2107.03374)."""

    def values(answers: Answers) -> Values:
        # pass@1 of single answers would only repeat the main score
        enough = {name: rows for name, rows in answers.items() if len(rows) >= max(k, 2)}
        return {name: (estimate(len(rows), sum(map(right, rows)), k), rows[0].cluster) for name, rows in enough.items()}

    return values


def majority_right(answers: Answers) -> Values:
    """Compute maj@n: main score of the most frequent answer of each question, the first of equals; unreadable ones have no vote."""
    out: Values = {}
    for name, rows in _several(answers).items():
        # answers that differ in case or spaces vote together
        votes = [normalise(r.answer) if r.status == "ok" and r.answer is not None else None for r in rows]
        chosen = majority(votes)
        out[name] = (main_score(rows[votes.index(chosen)]) if chosen is not None else 0.0, rows[0].cluster)
    return out


def best(answers: Answers) -> Values:
    """Take the largest main score among the answers of each question: an oracle, never a headline."""
    return {name: (max(map(main_score, rows)), rows[0].cluster) for name, rows in _several(answers).items()}


def _several(answers: Answers) -> dict[str, Sequence[Record]]:
    return {name: rows for name, rows in answers.items() if len(rows) > 1}


GROUPED: dict[str, Callable[[Answers], Values]] = {
    "all_right": all_right,
    "first_right": first_right,
    "macro": macro,
    **{f"pass@{k}": at_k(k, pass_at_k) for k in (1, 2, 4, 8, 16)},
    **{f"pass^{k}": at_k(k, pass_all_k) for k in (2, 4, 8, 16)},
    "maj@n": majority_right,
    "oracle_best": best,
}
"""Metric of several answers or questions -> its values; no values where it does not apply."""
AVERAGES = frozenset({"macro"})
"""Metrics whose values are means themselves: 0 and 1 do not make them a share of right answers."""
