"""Paired comparisons: gaps by hand, the test that fits the data, and what may not be compared."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.evals.test_evals_records import make_record
from tests.unit.evals.test_evals_summary import rows
from vlmrl.evals.score.paired import Incomparable, compare, compare_answers, flips, gap
from vlmrl.evals.score.records import by_sample
from vlmrl.evals.score.summary import summarize
from vlmrl.metrics.intervals import mcnemar, tango

A10 = [1.0, 1, 0, 1, 0, 1, 1, 0, 1, 1]
B10 = [1.0, 1, 1, 1, 0, 1, 1, 1, 1, 0]
"""B gains 2 and loses 1: p of McNemar's test is 1."""


def values(numbers, clusters=None):
    return {str(n): (v, str(n) if clusters is None else clusters[n]) for n, v in enumerate(numbers)}


def test_a_gap_by_hand():
    found = compare(rows(A10), list(reversed(rows(B10))), seed=0)
    x = found.gaps["r1@0.5"]
    assert (found.n, found.better, found.worse) == (10, 2, 1)
    assert (x.n, x.clusters, x.a, x.b, x.test, x.p) == (10, 10, 0.7, 0.8, "McNemar", 1.0)
    assert x.difference == pytest.approx(0.1)
    assert x.low < 0 < x.high
    assert compare(rows(B10), rows(A10), seed=0).gaps["miou"].difference == pytest.approx(-0.1)


def test_pairing_sees_what_two_intervals_hide():
    base = [n / 100 for n in range(100)]
    better = [min(1.0, v + 0.02 + 0.01 * (n % 3)) for n, v in enumerate(base)]
    a, b = summarize(rows(base), seed=0).metrics["miou"], summarize(rows(better), seed=0).metrics["miou"]
    assert a.high > b.low
    x = compare(rows(base), rows(better), seed=0).gaps["miou"]
    assert 0.02 < x.low < x.difference < x.high < 0.04
    assert x.p == pytest.approx(2 / 2001)  # no resample is below 0


def test_a_model_compared_with_itself():
    found = compare(rows([0.2, 0.4] * 6), rows([0.2, 0.4] * 6), seed=0)
    assert all((x.difference, x.differ, x.p, x.sign) == (0, 0, 1, 0) for x in found.gaps.values())
    miou, right = found.gaps["miou"], found.gaps["r1@0.3"]
    assert (miou.low, miou.high, miou.why) == (None, None, "all equal")
    assert (right.low, right.high) == tango(0, 0, 12)


def test_questions_about_one_medium_are_no_independent_trials():
    """McNemar's test takes each question for a trial of its own; with a medium shared whole media are exchanged."""
    a, b = [0.0] * 12, [1.0] * 12
    alone, shared = gap(values(a), values(b), np.random.default_rng(0)), gap(values(a), values(b, "aabbccddeeff"), np.random.default_rng(0))
    assert (alone.test, alone.p) == ("McNemar", pytest.approx(2 / 2**12))
    shared = gap(values(a, "xxxxxxyyyyyy"), values(b), np.random.default_rng(0))
    assert (shared.test, shared.clusters, shared.p, shared.why) == (
        "permutation",
        2,
        0.5,
        "no interval: 2 clusters",
    )  # the floor of two videos


def test_several_equal_answers_are_one_answer():
    a, b = rows(A10), rows(B10)
    once = compare(a, b, seed=0).gaps["r1@0.5"]
    often = compare(*([dataclasses.replace(r, k=k) for r in side for k in range(16)] for side in (a, b)), seed=0).gaps["r1@0.5"]
    assert often == once
    # answers that differ make values between 0 and 1, which McNemar's test cannot read
    mixed = [dataclasses.replace(r, k=k, scores={"tiou": 1.0 - k}) for r in a for k in range(2)]
    assert compare(mixed, [dataclasses.replace(r, k=k) for r in b for k in range(2)], seed=0).gaps["r1@0.5"].test == "permutation"


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.25, 0.5, 1.0])), min_size=1, max_size=14))
def test_swapping_the_sides_swaps_the_sign(pairs):
    a, b = (values([p[i] for p in pairs]) for i in (0, 1))
    there, back = gap(a, b, np.random.default_rng(5)), gap(b, a, np.random.default_rng(5))
    assert (there.difference, there.p, there.test) == (-back.difference, back.p, back.test)
    assert (there.low is None, there.why, there.sign) == (back.low is None, back.why, -back.sign)
    assert 0 <= there.p <= 1
    if there.low is not None:
        assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=1e-9)
        assert there.low - 1e-12 <= there.difference <= there.high + 1e-12
        assert there.low < there.high
    if there.test == "McNemar":
        assert there.p == mcnemar([v == 1 for v, _ in a.values()], [v == 1 for v, _ in b.values()])


def test_order_of_records_changes_nothing():
    a, b = rows(A10), rows(B10)
    straight = compare_answers(by_sample(a), by_sample(b), 0)
    assert compare_answers(by_sample(a[::-1]), by_sample(b[3:] + b[:3]), 0) == straight
    assert flips(by_sample(a), by_sample(a), lambda r: r.scores["tiou"]) == []


def test_parts_are_compared_by_themselves():
    a = [dataclasses.replace(r, difficulty="hard" if n < 3 else "easy") for n, r in enumerate(rows(A10))]
    b = [dataclasses.replace(r, difficulty="hard" if n < 3 else "easy") for n, r in enumerate(rows(B10))]
    found = compare(a, b, seed=0)
    assert {part: (x.n, x.better, x.worse) for part, x in found.parts.items()} == {
        "difficulty=easy": (7, 1, 1),
        "difficulty=hard": (3, 1, 0),
    }
    assert found.parts["difficulty=hard"] == dataclasses.replace(compare(a[:3], b[:3], seed=0), parts={})


def test_a_metric_of_groups_is_paired_by_group():
    def asked(scores, groups):
        return [
            make_record(f"q{n}", answer_type="choice", scores={"exact": v}, group=g)
            for n, (v, g) in enumerate(zip(scores, groups, strict=True))
        ]

    x = compare(asked([1.0, 1, 1, 0], "aabb"), asked([1.0, 0, 1, 1], "aabb"), seed=0).gaps["all_right"]
    assert (x.n, x.a, x.b) == (2, 0.5, 0.5)


def test_only_like_is_compared_with_like():
    a = rows([0.1, 0.2, 0.3])
    for b, message in [
        (a[:2], r"only the first has answers on 1 samples \(first: 'q002'\)"),
        ([], "no records"),
        ([*a, dataclasses.replace(a[0], k=1)], "the number of answers differs on 1 samples"),
        (
            [dataclasses.replace(a[0], sample_hash="x"), *a[1:]],
            r"question, gold answer, media or pixel budget differs on 1 samples \(first: 'q000'",
        ),
        ([dataclasses.replace(r, settings={**r.settings, "max_new_tokens": 99}) for r in a], "generation settings differs on 3 samples"),
        ([dataclasses.replace(r, answer_format="answer_only") for r in a], "the answer format differs on 3 samples"),
    ]:
        with pytest.raises(Incomparable, match=message):
            compare(a, b, seed=0)
    assert compare(a, [dataclasses.replace(r, fingerprint="other") for r in a], seed=0).n == 3


def test_a_comparison_says_which_engines_differ():
    """The reference engine is not named in records, and an import that says nothing of its settings has none that is known."""
    a = rows([0.1, 0.2])
    theirs = [dataclasses.replace(r, settings={**r.settings, "engine": "vllm"}) for r in a]
    with pytest.raises(Incomparable, match=r"generation settings differs on 2 samples \(first: 'q000', engine hf against vllm\)"):
        compare(a, theirs, seed=0)
    with pytest.raises(Incomparable, match=r"engine vllm against unknown, "):
        compare(theirs, [dataclasses.replace(r, settings={}) for r in a], seed=0)
    assert compare(theirs, theirs, seed=0).n == 2
