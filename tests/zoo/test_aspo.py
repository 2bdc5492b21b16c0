"""Reweighting `aspo`: the place of the first tool call."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.aspo import aspo, first_place


def of(places, lengths):
    """Rows whose ids are 0, with the call 7, 8 at these places (None: nowhere)."""
    ids = torch.zeros((len(places), max(lengths)), dtype=torch.int64)
    for row, place in enumerate(places):
        if place is not None:
            ids[row, place : place + 2] = torch.tensor([7, 8])
    return dataclasses.replace(inputs([(1.0, 0, True) for _ in places]), ids_NT=ids, length_N=torch.tensor(lengths))


def test_aspo_by_hand():
    # p = 1, 9, 20 of lengths 30, 40, 50 (the spec's thousands over 100): bonus 0.45, 0.05, -0.5, at most 0.35
    out = aspo(of([1, 9, 20], [30, 40, 50]), torch.full((3,), 0.5).double(), marker=[7, 8])
    assert out.tolist() == pytest.approx([0.85, 0.55, 0.15])


def test_aspo_leaves_what_is_wrong_or_calls_nothing():
    adv = torch.tensor([0.5, 0.5, -0.5, 0.5]).double()
    out = aspo(of([1, 9, 3, None], [30, 30, 30, 30]), adv, marker=[7, 8])
    assert out[2:].tolist() == [-0.5, 0.5]
    assert out[0] > 0.5 > out[1]
    assert aspo(of([1, None], [30, 30]), adv[:2], marker=[7, 8]).tolist() == [0.5, 0.5], "one call has no mean to differ from"


def test_aspo_finds_the_marker_within_the_response_only():
    x = of([3, 4], [6, 5])
    assert first_place(x.provided["ids_NT"], x.length_N, [7, 8]).tolist() == [3, -1]
    assert first_place(x.provided["ids_NT"], x.length_N, [1] * 9).tolist() == [-1, -1]


def test_aspo_refuses_its_arguments():
    with pytest.raises(ValueError, match="marker"):
        aspo(of([1], [5]), torch.ones(1), marker=[])
    with pytest.raises(ValueError, match="k 1"):
        aspo(of([1], [5]), torch.ones(1), marker=[7], k=1.0)
