"""sampling.ledger: moments against the statistics module, strict state."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmrl.errors import CheckpointError
from vlmrl.sampling.ledger import Ledger, LedgerRow


def test_two_groups_by_hand() -> None:
    ledger = Ledger()
    ledger.observe("a", rewards=[0.0, 1.0], lengths=[10, 20, 60], step=3)
    ledger.observe("a", rewards=[0.5], lengths=[30], step=5)
    row = ledger.row("a")
    assert (row.count, row.mean, row.passes, row.recent, row.last_seen) == (3, 0.5, 2, 0.5, 5)
    assert row.variance == pytest.approx(1 / 6)
    assert row.mean_square == pytest.approx((0 + 1 + 0.25) / 3)
    assert row.pass_rate == pytest.approx(2 / 3)
    assert (row.answers, row.mean_length) == (4, 30.0)


def test_an_unseen_sample() -> None:
    row = Ledger().row("nobody")
    assert row == LedgerRow()
    assert row.count == 0
    assert (row.mean, row.variance, row.mean_square, row.pass_rate, row.recent, row.last_seen, row.mean_length) == (None,) * 7


def test_a_group_that_nobody_judged_is_seen_but_not_scored() -> None:
    ledger = Ledger()
    ledger.observe("a", rewards=[1.0], lengths=[5], step=0)
    ledger.observe("a", rewards=[], lengths=[7], step=4)
    row = ledger.row("a")
    assert (row.count, row.mean, row.recent, row.last_seen, row.mean_length) == (1, 1.0, 1.0, 4, 6.0)
    ledger.observe("b", rewards=[], lengths=[], step=1)
    assert ledger.row("b") == LedgerRow(last_seen=1)
    assert len(ledger) == 2


def test_equal_rewards_have_exactly_no_variance() -> None:
    ledger = Ledger()
    for step in range(50):
        ledger.observe("a", rewards=[0.1] * 8, lengths=[1] * 8, step=step)
    assert ledger.row("a").variance == 0.0
    assert ledger.row("a").mean == 0.1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=5), min_size=1, max_size=6))
def test_moments_do_not_depend_on_the_grouping(groups: list[list[float]]) -> None:
    ledger = Ledger(pass_at=0.0)
    for step, rewards in enumerate(groups):
        ledger.observe("a", rewards=rewards, lengths=[], step=step)
    flat = [r for group in groups for r in group]
    row = ledger.row("a")
    assert row.count == len(flat)
    if flat:
        assert row.mean == pytest.approx(statistics.fmean(flat), rel=1e-9, abs=1e-6)
        assert row.variance == pytest.approx(statistics.pvariance(flat), rel=1e-6, abs=1e-5)
        assert row.passes == sum(r >= 0 for r in flat)


def test_bad_observations_change_nothing() -> None:
    ledger = Ledger()
    ledger.observe("a", rewards=[1.0], lengths=[3], step=2)
    before = ledger.state_dict()
    for rewards, lengths, step in (([math.nan], [1], 3), ([1.0, math.inf], [1], 3), ([1.0], [-1], 3), ([1.0], [1], 1)):
        with pytest.raises(ValueError, match="sample 'a'"):
            ledger.observe("a", rewards=rewards, lengths=lengths, step=step)
    assert ledger.state_dict() == before


def test_state_through_json_continues_identically() -> None:
    first, second = Ledger(), Ledger()
    first.observe("a", rewards=[0.1, 0.7], lengths=[3, 4], step=0)
    first.observe("b", rewards=[], lengths=[9], step=0)
    second.observe("other", rewards=[1.0], lengths=[1], step=9)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for ledger in (first, second):
        ledger.observe("a", rewards=[0.3], lengths=[5], step=1)
    assert second.state_dict() == first.state_dict()
    assert second.row("a") == first.row("a")
    assert second.row("other").count == 0


def test_loading_is_strict() -> None:
    ledger = Ledger()
    ledger.observe("a", rewards=[0.1], lengths=[3], step=0)
    good = ledger.state_dict()
    bad = [
        {k: v for k, v in good.items() if k != "rows"},
        {**good, "extra": 1},
        {**good, "fields": good["fields"][::-1]},
        {**good, "pass_at": 0.9},
        {**good, "rows": {"a": good["rows"]["a"][:-1]}},
    ]
    for state in bad:
        with pytest.raises(CheckpointError, match="ledger state"):
            ledger.load_state_dict(state)
    assert ledger.state_dict() == good
