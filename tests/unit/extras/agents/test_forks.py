"""agents.forks: which attempts are one at which turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vlmrl.extras.agents.forks import NONE, Forks


def test_leaders_by_hand() -> None:
    forks = Forks.of({3: 2, 1: 2})
    assert forks.ways == ((1, 2), (3, 2))
    assert [[forks.leader(k, turn) for k in range(8)] for turn in range(4)] == [
        [0, 0, 0, 0, 4, 4, 4, 4],
        [0, 0, 2, 2, 4, 4, 6, 6],
        [0, 0, 2, 2, 4, 4, 6, 6],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]
    assert [NONE.leader(k, 0) for k in range(3)] == [0, 1, 2]


@given(st.dictionaries(st.integers(1, 6), st.integers(2, 4), max_size=3), st.integers(0, 40), st.integers(0, 7))
def test_attempts_that_are_one_were_one_before(given_forks: dict[int, int], k: int, turn: int) -> None:
    forks = Forks.of(given_forks)
    leader = forks.leader(k, turn)
    assert leader <= k
    assert forks.leader(leader, turn) == leader
    assert turn == 0 or forks.leader(k, turn - 1) == forks.leader(leader, turn - 1)
