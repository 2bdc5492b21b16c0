"""Reward `route_step_proposed`."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.zoo.rewards.route_step_proposed import route_step_proposed

CTX = RewardContext()
ROUTE = {"query": "who painted the wall", "retriever": "Text"}


def scores(answers, route=ROUTE, gold="x", **arguments):
    of = sample(gold, meta={} if route is None else {"route": route})
    return route_step_proposed(group([f"<think>t</think><answer>{a}</answer>" for a in answers], of), CTX, **arguments)


def step(query, retriever):
    return f"<query>{query}</query><retriever>{retriever}</retriever>"


def test_route_step_proposed_by_hand():
    same, half = "who painted the wall", "who painted it"  # the second: two of three words, two of four, F1 4 / 7
    assert scores([step(same, "text"), step(half, "text"), step(same, "table")]) == pytest.approx([1.0, 0.5 + 0.5 * 4 / 7, 0.5])
    assert scores([step(same, "text, table")]) == [0.5], "two retrievers are not the one"
    assert scores([step(same, "web"), step(same, "text, none"), f"<query>{same}</query>", same]) == [0.0] * 4
    assert scores([step(same, "web")], {"query": same, "retriever": "web"}, retrievers=["web"]) == [1.0]


def test_the_answering_step_goes_by_recall():
    assert scores(["red wall", "a red"], None, "Red wall") == [1.0, 0.0], "a short answer: all or nothing"
    long = "the red wall behind the old house"
    assert scores(["the red wall", f"{long} and more"], None, long) == pytest.approx([4 / 7, 1.0])  # 'the' stands twice
    assert scores([f"{long} and more"], None, long, strict=True) == pytest.approx([2 * 7 / 16])


def test_route_step_proposed_names_a_row_that_is_wrong():
    with pytest.raises(ValueError, match=r"row.*meta\.route"):
        scores(["x"], {"query": "q"})
    with pytest.raises(ValueError, match="is none of"):
        scores(["x"], {"query": "q", "retriever": "web"})
    with pytest.raises(ValueError, match="short"):
        scores(["x"], short=-1)
