"""Metrics of sets of records, by hand."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.evals.test_evals_records import make_record
from vlmrl.evals.score.records import Record, by_sample
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.values import GROUPED, Values, all_right, first_right, macro


def rec(name: str, right: float, **changes) -> Record:
    return dataclasses.replace(make_record(name, answer_type="choice", scores={"exact": right}), cluster=name, **changes)


def mean(values: Values) -> float:
    return sum(value for value, _ in values.values()) / len(values)


def test_circular_rotations_of_one_question():
    # q1 1111, q2 1101, q3 0000, q4 11: first rotation 0.75, all rotations 0.5, mean over rotations 9 of 14.
    rotations = {"q1": "1111", "q2": "1101", "q3": "0000", "q4": "11"}
    records = [rec(f"{q}-{i}", float(right), group=q) for q, turns in rotations.items() for i, right in enumerate(turns)]
    assert mean(first_right(by_sample(records))) == 0.75
    assert mean(all_right(by_sample(records))) == 0.5
    means = summarize(records, seed=0).means()
    assert means["exact"] == pytest.approx(0.642857, abs=1e-6)
    assert (means["all_right"], means["first_right"]) == (0.5, 0.75)


def test_pairs():
    # Individual 5/8, pairs 2/4.
    records = [rec(f"{n}", right, group=str(n // 2)) for n, right in enumerate([1, 1, 1, 0, 0, 0, 1, 1])]
    assert mean(all_right(by_sample(records))) == 0.5
    assert summarize(records, seed=0).metrics["exact"].mean == 0.625


def test_macro_is_the_mean_over_categories():
    records = [rec(f"a{n}", float(n < 9), category="a") for n in range(10)] + [rec(f"b{n}", float(n < 1), category="b") for n in range(2)]
    summary = summarize(records, seed=0)
    assert summary.metrics["macro"].mean == pytest.approx(0.7)
    assert summary.metrics["exact"].mean == pytest.approx(10 / 12)
    assert {name: part.n for name, part in summary.parts.items()} == {"category=a": 10, "category=b": 2}
    assert macro(by_sample(records[:10])) == {}


@pytest.mark.parametrize(
    ("n", "correct", "name", "value"),
    [
        (4, 1, "pass@1", 0.25),
        (4, 1, "pass@2", 0.5),
        (4, 1, "pass@4", 1.0),
        (8, 2, "pass@4", 0.785714),
        (16, 5, "pass@8", 0.987179),
        (10, 0, "pass@4", 0.0),
        (5, 4, "pass@2", 1.0),
        (5, 4, "pass^2", 0.6),
    ],
)
def test_pass_at_k(n, correct, name, value):
    records = [rec("q", float(k < correct), k=k) for k in range(n)]
    assert mean(GROUPED[name](by_sample(records))) == pytest.approx(value, abs=1e-6)


def test_too_few_answers_have_no_pass_at_k():
    records = [rec("q", 1.0, k=k) for k in range(2)]
    assert GROUPED["pass@4"](by_sample(records)) == {}
    assert [name for name, of in GROUPED.items() if of(by_sample(records[:1]))] == []


def test_majority_takes_the_first_of_equals_and_unreadable_answers_do_not_vote():
    def answers(*given: tuple[str | None, float]) -> list[Record]:
        return [rec("q", right, k=k, answer=text, status="ok" if text else "no_tag") for k, (text, right) in enumerate(given)]

    maj = GROUPED["maj@n"]
    assert mean(maj(by_sample(answers(("B", 1.0), ("A", 0.0), ("A", 0.0), ("B", 1.0))))) == 1.0
    assert mean(maj(by_sample(answers((None, 0.0), ("A", 1.0), (None, 0.0))))) == 1.0
    assert mean(maj(by_sample(answers((None, 0.0), (None, 0.0))))) == 0.0
    assert mean(maj(by_sample(answers(("b ", 1.0), ("A", 0.0), ("B", 1.0))))) == 1.0


def test_the_oracle_takes_the_best():
    records = [rec("q", 0.0, k=0), rec("q", 1.0, k=1), rec("r", 0.0, k=0), rec("r", 0.0, k=1)]
    assert mean(GROUPED["oracle_best"](by_sample(records))) == 0.5
    assert [[r.k for r in rows] for rows in by_sample(reversed(records)).values()] == [[0, 1], [0, 1]]
