"""The layout of packed rows: columns, masks, pairs, and how groups are dealt into rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.policy.pack import PrefixLayout, attention_pairs, layout_of, partition

GROUPS = st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=4)), min_size=1, max_size=4)


def test_mask_of_three_answers_by_hand() -> None:
    # prompt p0 p1, answers a (2 tokens), b (1), c (1)
    allow = layout_of([(2, (2, 1, 1))]).allow().int().tolist()
    assert allow == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


def test_a_second_group_sees_nothing_of_the_first() -> None:
    allow = layout_of([(2, (1,)), (1, (2,))]).allow()
    assert not allow[3:, :3].any()
    assert not allow[:3, 3:].any()


def test_scored_columns_by_hand() -> None:
    # group 1: prompt 0..2, answers 3..4 and 5; group 2: prompt 6, answer 7..9
    layout = layout_of([(3, (2, 1)), (1, (3,))])
    assert layout.score_rows.tolist() == [2, 3, 2, 6, 7, 8]
    assert [b.suffix_starts for b in layout.blocks] == [(3, 5), (7,)]


@given(GROUPS)
def test_scored_columns_equal_a_row_per_answer(groups: list[tuple[int, list[int]]]) -> None:
    """Brute force: give every token its (group, answer, place); the column that predicts a token holds the token before it."""
    layout = layout_of(groups)
    columns: dict[tuple[int, int, int], int] = {}
    for g, (prefix, suffixes) in enumerate(groups):
        for t in range(prefix):
            columns[(g, 0, t)] = len(columns)
        for i, length in enumerate(suffixes):
            for t in range(length):
                columns[(g, i + 1, prefix + t)] = len(columns)
    expected = [
        columns[(g, i + 1 if t else 0, prefix + t - 1)]
        for g, (prefix, suffixes) in enumerate(groups)
        for i, length in enumerate(suffixes)
        for t in range(length)
    ]
    assert layout.score_rows.tolist() == expected
    assert layout.tokens == len(columns)


@given(GROUPS)
def test_pairs_are_those_of_the_mask(groups: list[tuple[int, list[int]]]) -> None:
    layout = layout_of(groups)
    assert layout.pairs == int(layout.allow().sum())


def test_pairs_of_the_papers_example() -> None:
    # P 1024, G 8, C 256: attention factor 2.27, token factor 3.33
    repeat = 8 * (1280 * 1281 // 2)
    assert repeat / attention_pairs(1024, [256] * 8) == pytest.approx(2.27, abs=0.005)
    assert 8 * 1280 / layout_of([(1024, [256] * 8)]).tokens == pytest.approx(3.33, abs=0.005)


def test_a_group_needs_a_prompt() -> None:
    with pytest.raises(ValueError, match="prompt token"):
        layout_of([(0, (1,))])
    assert PrefixLayout(()).tokens == 0


@given(GROUPS, st.integers(1, 30))
def test_partition_keeps_every_answer_once_and_the_budget(groups: list[tuple[int, list[int]]], budget: int) -> None:
    rows = partition(groups, budget)
    dealt = sorted((g, i) for row in rows for g, held in row for i in held)
    assert dealt == [(g, i) for g, (_, suffixes) in enumerate(groups) for i in range(len(suffixes))]
    for row in rows:
        size = sum(groups[g][0] + sum(groups[g][1][i] for i in held) for g, held in row)
        # empty answers ride along for nothing; one real answer with its prompt may be over the budget
        assert size <= budget or (len(row) == 1 and sum(1 for i in row[0][1] if groups[row[0][0]][1][i]) <= 1)


def test_partition_cuts_a_large_group_between_answers() -> None:
    assert partition([(10, [4, 4, 4])], 18) == [[(0, (0, 1))], [(0, (2,))]]


def test_partition_fills_rows() -> None:
    # sizes 6, 5, 4, 3 into rows of 9: largest first gives 6+3 and 5+4
    rows = partition([(5, [1]), (4, [1]), (3, [1]), (2, [1])], 9)
    assert rows == [[(0, (0,)), (3, (0,))], [(1, (0,)), (2, (0,))]]


def test_ends_and_runs_by_hand() -> None:
    layout = layout_of([(2, (1, 0, 2)), (1, (1,))])
    assert layout.ends.tolist() == [5, 5, 3, 5, 5, 7, 7]
    assert [tuple(run) for run in layout.runs] == [(0, 2, 5, -1), (2, 3, 3, 0), (3, 5, 5, 0), (5, 7, 7, -1)]


@given(GROUPS)
def test_a_token_sees_its_prompt_and_its_own_answer(groups: list[tuple[int, list[int]]]) -> None:
    """Brute force, by the group and the answer of every token; answer 0 is the prompt."""
    owners: list[tuple[int, int]] = []
    for g, (prefix, suffixes) in enumerate(groups):
        owners += [(g, 0)] * prefix + [(g, i + 1) for i, n in enumerate(suffixes) for _ in range(n)]
    wanted = [[k <= q and of_q[0] == of_k[0] and of_k[1] in (0, of_q[1]) for k, of_k in enumerate(owners)] for q, of_q in enumerate(owners)]
    assert layout_of(groups).allow().tolist() == wanted
