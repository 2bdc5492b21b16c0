"""agents.history: which screens a prompt holds, and what that costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.extras.agents.history import History, Window


def windows(text: str, turns: int) -> list[tuple[int, int]]:
    found = [History.of(text).window(turn) for turn in range(turns)]
    return [(window.start, window.first) for window in found]


def test_windows_by_hand():
    assert windows("all", 3) == [(0, 0)] * 3
    assert windows("1", 3) == [(0, 0), (1, 1), (2, 2)]
    assert windows("3", 5) == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2)]
    assert windows("3/2", 6) == [(0, 0), (0, 0), (2, 0), (2, 0), (4, 2), (4, 2)]
    assert History.of("3/8").window(17) == Window(start=16, first=14)


def test_costs_of_24_turns():
    # screens of 1,196 tokens (1280 x 720 on a grid of 28 pixels): the last 3 of each turn read 82,524, begun anew every 8 turns 33,488
    screen = 1196
    assert History.of("3").prefilled(24) * screen == 82_524
    assert History.of("3/8").prefilled(24) * screen == 33_488
    assert History.of("all").prefilled(24) * screen == 28_704
    assert [History.of(text).longest(24) for text in ("all", "3", "3/8")] == [24, 3, 10]
    # the estimates T k O = 86k, (T/b) k O + T O = 39k and (k + b) O = 13k bound them
    assert History.of("3").prefilled(24) <= 24 * 3
    assert History.of("3/8").prefilled(24) <= 24 // 8 * 3 + 24
    assert History.of("3/8").longest(24) <= 3 + 8


@given(screens=st.integers(1, 5), every=st.integers(1, 9), turns=st.integers(1, 40))
def test_a_prompt_holds_the_last_screens_and_never_loses_one_in_between(screens, every, turns):
    history = History(screens=screens, every=every)
    before = None
    for turn in range(turns):
        window = history.window(turn)
        assert window.first <= window.start <= turn < window.start + every
        assert turn - window.first + 1 >= min(screens, turn + 1)
        if before is not None and window.start == before.start:
            assert window == before, "within a chain the prompt only grows"
        before = window
    assert history.longest(turns) <= screens + every - 1
    assert turns <= history.prefilled(turns)


@pytest.mark.parametrize("text", ["some", "3/", "-1", "0", "3/0", "1.5", "all/2"])
def test_what_is_no_history_is_refused(text):
    with pytest.raises(ValueError, match="history"):
        History.of(text)
