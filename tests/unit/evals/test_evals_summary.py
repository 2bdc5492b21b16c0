"""Numbers from records: means by hand, intervals against an independent computation, the constant-answer baseline."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evals.test_evals_records import make_record
from vlmrl.evals.score.baseline import MAX_CANDIDATES, constant_baseline
from vlmrl.evals.score.measures import LABELS, METRICS
from vlmrl.evals.score.records import Think
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.values import GROUPED
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
    # Wilson's of 5 of 8: (0.625 + z^2/16 -+ z sqrt(0.234375/8 + z^2/256)) / (1 + z^2/8)
    interval = summarize(rows([1.0, 1, 0, 1, 0, 0, 1, 1]), seed=0).metrics["miou"]
    assert (interval.mean, interval.low, interval.high) == (0.625, pytest.approx(0.3057, abs=1e-4), pytest.approx(0.8632, abs=1e-4))
    assert interval.method == "Wilson"


def test_interval_agrees_with_an_independent_bootstrap():
    values = np.random.Generator(np.random.Philox(1)).beta(2, 3, size=60)
    interval = summarize(rows(values.tolist()), seed=0).metrics["miou"]
    assert interval.low is not None
    draws = np.random.Generator(np.random.Philox(2)).choice(values, size=(20000, 60)).mean(1)
    assert interval.low == pytest.approx(np.quantile(draws, 0.025), abs=0.008)
    assert interval.high == pytest.approx(np.quantile(draws, 0.975), abs=0.008)


def test_questions_of_one_video_are_not_independent():
    alone = rows([0.0, 1.0] * 20)
    shared = [dataclasses.replace(r, cluster=f"v{int(r.scores['tiou'])}{n // 20}") for n, r in enumerate(alone)]
    wide, narrow = summarize(shared, seed=0), summarize(alone, seed=0)
    assert (wide.clusters, narrow.clusters) == (4, 40)
    assert wide.metrics["miou"].mean == narrow.metrics["miou"].mean == 0.5
    # Four videos that agree within themselves say little of others.
    assert (wide.metrics["miou"].low, wide.metrics["miou"].why) == (None, "no interval: 4 clusters")
    assert narrow.metrics["miou"].low == pytest.approx(0.352, abs=1e-3)


@given(st.permutations(list(range(12))), st.integers(0, 3))
def test_order_changes_nothing(order, seed):
    records = rows([n / 12 for n in range(12)])
    assert summarize([records[n] for n in order], seed=seed) == summarize(records, seed=seed)


def test_seed_decides_the_resampling():
    records = rows([n / 50 for n in range(50)])
    assert summarize(records, seed=1) == summarize(records, seed=1)
    assert summarize(records, seed=1) != summarize(records, seed=2)


def test_constant_baseline_by_hand():
    assert constant_baseline([(1.0, 3.0)]) == ((1.0, 3.0), 1.0)
    # 0-2 and 1-3: either of them scores (1 + 1/3) / 2, their hull and their overlap only (2/3 + 2/3) / 2 and (1/2 + 1/2) / 2.
    span, miou = constant_baseline([(0.0, 2.0), (1.0, 3.0)])
    assert miou == pytest.approx(2 / 3)
    assert span in [(0.0, 2.0), (1.0, 3.0), (0.0, 3.0)]
    with pytest.raises(ValueError, match="no gold spans"):
        constant_baseline([])


spans = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)).map(lambda p: (p[0] / 2, (p[0] + p[1]) / 2)), min_size=1, max_size=7)


@given(spans)
def test_no_constant_is_better_than_the_best(golds):
    span, miou = constant_baseline(golds)
    assert miou == pytest.approx(np.mean([temporal_iou(span, gold, sort_times=False) for gold in golds]))
    grid = [n / 4 for n in range(0, 45)]
    for pair in itertools.combinations(grid, 2):
        assert np.mean([temporal_iou(pair, gold, sort_times=False) for gold in golds]) <= miou + 1e-12


def test_constant_baseline_of_many_distinct_spans_is_close():
    draw = np.random.Generator(np.random.Philox(5))
    starts = draw.uniform(0, 10, size=3 * MAX_CANDIDATES)
    golds = [(float(s), float(s + w)) for s, w in zip(starts, draw.uniform(1, 5, size=len(starts)), strict=True)]
    span, miou = constant_baseline(golds)
    around = [(span[0] + a, span[1] + b) for a in np.linspace(-1, 1, 15) for b in np.linspace(-1, 1, 15)]
    best = max(np.mean([temporal_iou(s, gold, sort_times=False) for gold in golds]) for s in around)
    assert best - 2e-3 < miou <= best + 1e-12 or miou >= best
