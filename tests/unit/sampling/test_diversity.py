"""sampling.ledger, and where the ledger keeps it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.sampling.ledger import Ledger, distinct_n


def test_distinct_n():
    assert distinct_n([[1, 2, 3], [1, 2, 4]], n=2) == pytest.approx(3 / 4)
    assert distinct_n([[1, 2, 3], [1, 2, 4]], n=1) == pytest.approx(4 / 6)
    assert distinct_n([[1, 2]] * 4, n=2) == 0.25
    assert distinct_n([["a", "b", "c"], ["d", "e"]]) == 1.0
    assert distinct_n([[1], []]) is None
    with pytest.raises(ValueError, match="at least 1"):
        distinct_n([[1]], n=0)


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=5), st.integers(1, 3))
def test_distinct_n_lies_in_the_unit_interval(answers: list[list[int]], n: int):
    value = distinct_n(answers, n=n)
    assert value is None or 0 < value <= 1
    assert value == distinct_n(answers[::-1], n=n)


def test_the_ledger_keeps_the_last_measured_diversity():
    ledger, again = Ledger(), Ledger()
    ledger.observe("a", rewards=[1.0], lengths=[], step=0)
    assert ledger.row("a").diversity is None
    ledger.observe("a", rewards=[1.0], lengths=[], step=1, diversity=0.25)
    ledger.observe("a", rewards=[1.0], lengths=[], step=2)
    assert ledger.row("a").diversity == 0.25
    again.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert again.row("a") == ledger.row("a")
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="diversity"):
            ledger.observe("a", rewards=[1.0], lengths=[], step=3, diversity=bad)
    assert again.state_dict() == ledger.state_dict()
