"""Numbers from records: means by hand, intervals against an independent computation, comparisons only of like with like."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evals.test_evals_records import make_record
from vlmrl.evals.score.grouped import GROUPED
from vlmrl.evals.score.records import Think
from vlmrl.evals.score.summary import LABELS, MAX_CANDIDATES, METRICS, Incomparable, best_constant, compare, summarize
from vlmrl.metrics.temporal import temporal_iou


def rows(tious, **changes):
    return [make_record(f"q{n:03d}", scores={"tiou": v}, cluster=f"v{n}", sample_hash=f"h{n}", **changes) for n, v in enumerate(tious)]


def test_every_metric_by_hand():
    # IoU of section 3.1's vectors, with thresholds that are hit exactly.
    a, b, c, d, e = rows([0.890625, 1 / 3, 0.0, 0.5, 0.3])
    a = dataclasses.replace(a, think=Think(has=True, tokens=9), n_out=10, format_ok=True)
    b = dataclasses.replace(b, think=Think(has=True, tokens=9), n_out=200)
    c = dataclasses.replace(c, status="truncated", pred=None, answer=None, finish="length", n_out=150)
    d = dataclasses.replace(d, n_out=12)
    e = dataclasses.replace(e, status="no_tag", unclosed=True, n_out=8)
    means = summarize([a, b, c, d, e], seed=0).means()
    assert means["miou"] == pytest.approx((0.890625 + 1 / 3 + 0.5 + 0.3) / 5)
    assert means["r1@0.3"] == pytest.approx(4 / 5)
    assert means["r1@0.5"] == pytest.approx(2 / 5)
    assert means["r1@0.7"] == pytest.approx(1 / 5)
    assert means["parse_rate"] == pytest.approx(3 / 5)
    assert means["format_rate"] == pytest.approx(1 / 5)
    assert means["think_rate"] == pytest.approx(2 / 5)
    assert means["tokens"] == pytest.approx(380 / 5)
    assert means["truncation_rate"] == pytest.approx(2 / 5)
    assert means["miou_given_think"] == pytest.approx((0.890625 + 1 / 3) / 2)
    assert means["miou_given_skip"] == pytest.approx(0.8 / 3)
    assert set(LABELS) == set(METRICS) | set(GROUPED)


def test_nobody_thinks_and_nobody_is_there():
    assert summarize(rows([1.0]), seed=0).miou_given_think is None
    empty = summarize([], seed=0)
    assert (empty.n, empty.metrics, empty.means()) == (0, {}, {"miou_given_think": None, "miou_given_skip": None})


def test_interval_of_a_share():
    # x = [1,1,0,1,0,0,1,1]: the percentile bootstrap is about (0.25, 0.875); eighths, so quantiles are exact steps.
    interval = summarize(rows([1.0, 1, 0, 1, 0, 0, 1, 1]), seed=0).metrics["miou"]
    assert (interval.mean, interval.low, interval.high) == (0.625, 0.25, 0.875)


def test_interval_agrees_with_an_independent_bootstrap():
    values = np.random.Generator(np.random.Philox(1)).beta(2, 3, size=60)
    interval = summarize(rows(values.tolist()), seed=0).metrics["miou"]
    draws = np.random.Generator(np.random.Philox(2)).choice(values, size=(20000, 60)).mean(1)
    assert interval.low == pytest.approx(np.quantile(draws, 0.025), abs=0.008)
    assert interval.high == pytest.approx(np.quantile(draws, 0.975), abs=0.008)


def test_questions_of_one_video_are_not_independent():
    alone = rows([0.0, 1.0] * 20)
    shared = [dataclasses.replace(r, cluster=f"v{int(r.scores['tiou'])}{n // 20}") for n, r in enumerate(alone)]
    wide, narrow = summarize(shared, seed=0), summarize(alone, seed=0)
    assert (wide.clusters, narrow.clusters) == (4, 40)
    assert wide.metrics["miou"].mean == narrow.metrics["miou"].mean == 0.5
    # Four videos that agree within themselves: as few as one in sixteen draws is all 0 or all 1.
    assert (wide.metrics["miou"].low, wide.metrics["miou"].high) == (0.0, 1.0)
    assert narrow.metrics["miou"].low > 0.3


@given(st.permutations(list(range(12))), st.integers(0, 3))
def test_order_changes_nothing(order, seed):
    records = rows([n / 12 for n in range(12)])
    assert summarize([records[n] for n in order], seed=seed) == summarize(records, seed=seed)


def test_seed_decides_the_resampling():
    records = rows([n / 50 for n in range(50)])
    assert summarize(records, seed=1) == summarize(records, seed=1)
    assert summarize(records, seed=1) != summarize(records, seed=2)


def test_paired_comparison_by_hand():
    # The paired vectors of section 3.10: mean difference 0.1, t 0.557086, p 0.591051; B gains 2 and loses 1.
    a = [1.0, 1, 0, 1, 0, 1, 1, 0, 1, 1]
    b = [1.0, 1, 1, 1, 0, 1, 1, 1, 1, 0]
    found = compare(rows(a), list(reversed(rows(b))), seed=0)
    x = found.metrics["miou"]
    assert (found.n, found.better, found.worse) == (10, 2, 1)
    assert x.mean == pytest.approx(0.1)
    assert x.t == pytest.approx(0.557086, abs=1e-6)
    assert x.p == pytest.approx(0.591051, abs=1e-6)
    assert x.low < 0 < x.high
    assert compare(rows(b), rows(a), seed=0).metrics["miou"].mean == pytest.approx(-0.1)


def test_pairing_sees_what_two_intervals_hide():
    base = [n / 100 for n in range(100)]
    better = [min(1.0, v + 0.02 + 0.01 * (n % 3)) for n, v in enumerate(base)]
    a, b = summarize(rows(base), seed=0).metrics["miou"], summarize(rows(better), seed=0).metrics["miou"]
    assert a.high > b.low
    x = compare(rows(base), rows(better), seed=0).metrics["miou"]
    assert 0.02 < x.low < x.mean < x.high < 0.04
    assert x.p < 1e-6


def test_a_model_compared_with_itself():
    x = compare(rows([0.2, 0.4]), rows([0.2, 0.4]), seed=0)
    assert all((d.mean, d.low, d.high, d.t, d.p) == (0, 0, 0, 0, 1) for d in x.metrics.values())
    assert math.isinf(compare(rows([0.2, 0.4]), rows([0.7, 0.9]), seed=0).metrics["r1@0.7"].t)


def test_only_like_is_compared_with_like():
    a = rows([0.1, 0.2, 0.3])
    for b, message in [
        (a[:2], "1 samples are in one set only, the first is 'q002'"),
        ([], "no records"),
        ([*a, a[0]], "1 samples occur more than once in the records of 'rl'"),
        ([dataclasses.replace(a[0], sample_hash="x"), *a[1:]], "sample 'q000' differs between the sets"),
        ([dataclasses.replace(r, settings={**r.settings, "max_new_tokens": 99}) for r in a], "sample 'q000' was generated for with"),
    ]:
        with pytest.raises(Incomparable, match=message):
            compare(a, b, seed=0)
    assert compare(a, [dataclasses.replace(r, answer_format="answer_only", fingerprint="other") for r in a], seed=0).n == 3


def test_best_constant_by_hand():
    assert best_constant([(1.0, 3.0)]) == ((1.0, 3.0), 1.0)
    # 0-2 and 1-3: either of them scores (1 + 1/3) / 2, their hull and their overlap only (2/3 + 2/3) / 2 and (1/2 + 1/2) / 2.
    span, miou = best_constant([(0.0, 2.0), (1.0, 3.0)])
    assert miou == pytest.approx(2 / 3)
    assert span in [(0.0, 2.0), (1.0, 3.0), (0.0, 3.0)]
    with pytest.raises(ValueError, match="no gold spans"):
        best_constant([])


spans = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)).map(lambda p: (p[0] / 2, (p[0] + p[1]) / 2)), min_size=1, max_size=7)


@given(spans)
def test_no_constant_is_better_than_the_best(golds):
    span, miou = best_constant(golds)
    assert miou == pytest.approx(np.mean([temporal_iou(span, gold, sort_times=False) for gold in golds]))
    grid = [n / 4 for n in range(0, 45)]
    for pair in itertools.combinations(grid, 2):
        assert np.mean([temporal_iou(pair, gold, sort_times=False) for gold in golds]) <= miou + 1e-12


def test_best_constant_of_many_distinct_spans_is_close():
    draw = np.random.Generator(np.random.Philox(5))
    starts = draw.uniform(0, 10, size=3 * MAX_CANDIDATES)
    golds = [(float(s), float(s + w)) for s, w in zip(starts, draw.uniform(1, 5, size=len(starts)), strict=True)]
    span, miou = best_constant(golds)
    around = [(span[0] + a, span[1] + b) for a in np.linspace(-1, 1, 15) for b in np.linspace(-1, 1, 15)]
    best = max(np.mean([temporal_iou(s, gold, sort_times=False) for gold in golds]) for s in around)
    assert best - 2e-3 < miou <= best + 1e-12 or miou >= best
