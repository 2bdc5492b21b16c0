"""Metrics that need several records at once: of the answers to one question (pass@k), or of the questions of one group (circular
evaluation, pairs).

Each gives values with the cluster that they are resampled with; the metric is the mean of the values. All are 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vlmrl.evals.score.measures import main_score
from vlmrl.evals.score.records import Record
from vlmrl.metrics.stats import majority, pass_all_k, pass_at_k
from vlmrl.rewards.exact import normalise

Values = list[tuple[float, str]]
"""(value, cluster)."""


def by_sample(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Sample id -> its records in the order of `k`."""
    out: dict[str, list[Record]] = {}
    for record in records:
        out.setdefault(record.sample_id, []).append(record)
    return {name: sorted(rows, key=lambda r: r.k) for name, rows in out.items()}


def right(record: Record) -> bool:
    """Whether the main score is full: what counts as solved."""
    return main_score(record) >= 1


def all_right(records: Sequence[Record]) -> Values:
    """Share of groups whose questions are all answered right: circular evaluation over the rotations of one question (MMBench, SAT),
    pairs of MMVP, image pairs of MME (acc+). Of several answers to a question the first counts. No values without groups."""
    groups: dict[str, list[Record]] = {}
    for rows in by_sample(records).values():
        if rows[0].group is not None:
            groups.setdefault(rows[0].group, []).append(rows[0])
    return [(float(all(right(r) for r in rows)), rows[0].cluster) for rows in groups.values()]


def first_right(records: Sequence[Record]) -> Values:
    """Main score of the first question of each group, by sample id: the plain score beside `all_right`. No values without groups."""
    first: dict[str, Record] = {}
    for _, rows in sorted(by_sample(records).items()):
        if rows[0].group is not None:
            first.setdefault(rows[0].group, rows[0])
    return [(main_score(r), r.cluster) for r in first.values()]


def macro(records: Sequence[Record]) -> Values:
    """Mean over categories of the mean main score in each (MMStar). No values unless the rows name several categories.

    A value per category, each its own cluster: the interval says how much the categories differ.
    """
    categories: dict[str, list[float]] = {}
    for record in records:
        if record.category is not None:
            categories.setdefault(record.category, []).append(main_score(record))
    return [(sum(v) / len(v), name) for name, v in sorted(categories.items())] if len(categories) > 1 else []


def at_k(k: int, estimate: Callable[[int, int, int], float]) -> Callable[[Sequence[Record]], Values]:
    """pass@k (or pass^k) of each question from its n >= k answers, unbiased (arXiv:2107.03374)."""

    def values(records: Sequence[Record]) -> Values:
        rows = [r for r in by_sample(records).values() if len(r) >= max(k, 2)]
        return [(estimate(len(r), sum(right(x) for x in r), k), r[0].cluster) for r in rows]

    return values


def majority_right(records: Sequence[Record]) -> Values:
    """maj@n: main score of the most frequent answer of each question, the first of equals; unreadable ones have no vote."""
    out: Values = []
    for rows in by_sample(records).values():
        if len(rows) < 2:
            continue
        votes = [normalise(r.answer) if r.status == "ok" and r.answer is not None else None for r in rows]
        chosen = majority(votes)
        out.append((main_score(rows[votes.index(chosen)]) if chosen is not None else 0.0, rows[0].cluster))
    return out


def best(records: Sequence[Record]) -> Values:
    """Largest main score among the answers of each question: an oracle, never a headline."""
    return [(max(main_score(r) for r in rows), rows[0].cluster) for rows in by_sample(records).values() if len(rows) > 1]


GROUPED: dict[str, Callable[[Sequence[Record]], Values]] = {
    "all_right": all_right,
    "first_right": first_right,
    "macro": macro,
    **{f"pass@{k}": at_k(k, pass_at_k) for k in (1, 2, 4, 8, 16)},
    **{f"pass^{k}": at_k(k, pass_all_k) for k in (2, 4, 8, 16)},
    "maj@n": majority_right,
    "oracle_best": best,
}
"""Name -> values of a set of records; no values where it does not apply."""
