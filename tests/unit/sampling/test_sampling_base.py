"""sampling.base: news from the ledger, who is in flight, rankings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.errors import CheckpointError
from vlmrl.sampling.base import InFlight, News, Observed, Stream, best
from vlmrl.sampling.ledger import Ledger


def test_news_are_differences():
    ledger, news = Ledger(), News(["b", "a", "c"])
    assert (news.read(ledger), news.clock) == ([], -1)
    ledger.observe("a", rewards=[1.0, 0.0], lengths=[], step=2)
    ledger.observe("other", rewards=[1.0], lengths=[], step=9)
    assert news.read(ledger) == [Observed("a", 2, 1.0, 1, 2)]
    ledger.observe("a", rewards=[1.0, 1.0, 1.0], lengths=[], step=3)
    ledger.observe("b", rewards=[], lengths=[4], step=4)
    got = news.read(ledger)
    assert [(n.sample_id, n.count, n.passes, n.step) for n in got] == [("a", 3, 3, 3), ("b", 0, 0, 4)]
    assert got[0].total == pytest.approx(3.0)
    assert (news.read(ledger), news.clock) == ([], 4)


def test_news_state_is_strict_and_complete():
    ledger, news, again = Ledger(), News(["a", "b"]), News(["a", "b"])
    ledger.observe("a", rewards=[1.0], lengths=[], step=0)
    news.read(ledger)
    again.load_state_dict(json.loads(json.dumps(news.state_dict())))
    assert again.read(ledger) == []
    for bad in ({"c": [1, 1.0, 1, 0]}, {"a": [1, 1.0, 1]}, {"a": [1, "1", 1, 0]}, {"a": 3}):
        with pytest.raises(CheckpointError, match="news"):
            again.load_state_dict(bad)


def test_in_flight_until_observed():
    ledger, flying = Ledger(), InFlight()
    ledger.observe("a", rewards=[1.0], lengths=[], step=1)
    flying.add(["a", "b"], ledger)
    assert flying.busy(ledger) == {"a", "b"}
    ledger.observe("a", rewards=[1.0], lengths=[], step=2)
    assert flying.busy(ledger) == {"b"}
    again = InFlight()
    again.load_state_dict(json.loads(json.dumps(flying.state_dict())), ["a", "b"])
    assert again.busy(ledger) == {"b"}
    with pytest.raises(CheckpointError, match="in flight"):
        again.load_state_dict({"c": 1}, ["a", "b"])


def test_best():
    assert best("abcd", [{"c"}, {"a"}], 4) == ["b", "d", "c", "a"]
    assert best("abcd", [{"a"}, {"a", "b"}], 2) == ["c", "d"]
    assert best("ab", [], 5) == ["a", "b", "a", "b", "a"]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 3))
def test_streams_hold_whole_epochs(n: int, epoch: int, seed: int):
    stream = Stream([f"s{i}" for i in range(n)], seed, "x")
    got = [stream.at(epoch * n + i) for i in range(n)]
    assert sorted(k for k, _ in got) == sorted(stream.ids)
    assert {e for _, e in got} == {epoch}
