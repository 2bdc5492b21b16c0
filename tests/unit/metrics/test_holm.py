"""Holm's correction: vectors by hand, and the procedure that it stands for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.holm import holm

P_VALUES = st.lists(st.floats(0, 1), max_size=8)


@pytest.mark.parametrize(
    ("p", "adjusted"),
    [
        ([], []),
        ([0.03], [0.03]),
        # 4 * 0.005, 3 * 0.01, 2 * 0.03, 1 * 0.04 -> the last one is raised to the one before it.
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        # 3 * 0.01, 2 * 0.02, 1 * 0.03 -> 0.03, 0.04, and 0.03 raised to 0.04.
        ([0.03, 0.02, 0.01], [0.04, 0.04, 0.03]),
        ([0.02, 0.02], [0.04, 0.04]),
        ([0.6, 0.5], [1.0, 1.0]),
        ([0.0, 1.0], [0.0, 1.0]),
    ],
)
def test_by_hand(p, adjusted):
    assert holm(p) == pytest.approx(adjusted)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_what_is_no_p_value_is_refused(wrong):
    with pytest.raises(ValueError, match="p value 1 is"):
        holm([0.5, wrong])


def rejected(p: list[float], alpha: float) -> set[int]:
    """The step-down procedure as the paper states it: go on from the smallest while p <= alpha / (what is left)."""
    out: set[int] = set()
    for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[place] * (len(p) - rank) > alpha:
            break
        out.add(place)
    return out


@given(P_VALUES, st.floats(0.001, 0.999))
def test_adjusted_values_reject_what_the_procedure_rejects(p, alpha):
    assert {place for place, value in enumerate(holm(p)) if value <= alpha} == rejected(p, alpha)


@given(P_VALUES)
def test_order_is_kept_and_nothing_becomes_smaller(p):
    adjusted = holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, adjusted, strict=True))
    assert all(adjusted[i] <= adjusted[j] for i in range(len(p)) for j in range(len(p)) if p[i] < p[j])


@given(P_VALUES, st.randoms())
def test_each_value_keeps_its_place(p, random):
    order = list(range(len(p)))
    random.shuffle(order)
    assert holm([p[i] for i in order]) == [holm(p)[i] for i in order]
