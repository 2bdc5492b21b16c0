"""sampling.dynamic_sampling: how many more prompts, and when to stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.sampling.dynamic_sampling import Refill, refill


def test_refill():
    assert refill(wanted=512, kept=0, generated=0, attempts=0) == Refill(512, None, 0)
    assert refill(wanted=512, kept=256, generated=512, attempts=1) == Refill(512, None, 0)
    assert refill(wanted=512, kept=400, generated=512, attempts=1) == Refill(144, None, 0)  # 112 / (400 / 512) = 143.36
    assert refill(wanted=512, kept=0, generated=512, attempts=1) == Refill(512, None, 0)
    assert refill(wanted=512, kept=540, generated=1024, attempts=2) == Refill(0, "full", 28)
    assert refill(wanted=512, kept=511, generated=5000, attempts=10) == Refill(0, "exhausted", 0)


def test_rounding_up_to_whole_batches():
    assert refill(wanted=10, kept=9, generated=10, attempts=1, multiple=4) == Refill(4, None, 0)
    assert refill(wanted=10, kept=0, generated=10, attempts=1, multiple=4) == Refill(12, None, 0)


@given(st.integers(1, 40), st.floats(0, 1), st.integers(1, 12), st.integers(1, 8))
def test_it_always_stops(wanted: int, rate: float, max_attempts: int, multiple: int):
    kept = generated = attempts = 0
    while True:
        step = refill(wanted=wanted, kept=kept, generated=generated, attempts=attempts, max_attempts=max_attempts, multiple=multiple)
        if step.stop:
            break
        assert 0 < step.prompts < wanted + multiple
        assert step.prompts % multiple == 0
        generated += step.prompts
        kept += int(rate * step.prompts)
        attempts += 1
    assert attempts <= max_attempts
    assert (step.stop == "full") == (kept >= wanted)
    assert step.surplus == max(0, kept - wanted)
    assert step.prompts == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"wanted": 0},
        {"kept": 3},
        {"kept": -1},
        {"attempts": 0},
        {"attempts": -1},
        {"max_attempts": 0},
        {"multiple": 0},
        {"generated": 0, "kept": 0},
    ],
)
def test_impossible_counts(bad: dict):
    with pytest.raises(ValueError, match="do not fit"):
        refill(**({"wanted": 4, "kept": 1, "generated": 2, "attempts": 1} | bad))
