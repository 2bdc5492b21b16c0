"""Tokens by hand and against the packing itself; counters are differences; memory is in MiB."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import sample
from vlmrl.policy.forward import LAYOUTS
from vlmrl.policy.pack import PositionSpec, Row
from vlmrl.train.meter import Counters, TokenCounter, packed, repeated
from vlmrl.types import Prompt


def rows_of(groups: list[tuple[int, list[int]]]) -> list[Row]:
    """Groups as (prompt tokens, answer tokens of each answer)."""
    out: list[Row] = []
    for g, (length, answers) in enumerate(groups):
        prompt = Prompt(sample=sample(), ids=(1,) * length, media=(), spans=(), answer_format="think_answer")
        out += [Row(index=0, group=g, prompt=prompt, response=(2,) * n) for n in answers]
    return out


def test_tokens_by_hand() -> None:
    tokens = TokenCounter()
    tokens.add(rows_of([(100, [3, 5]), (40, [2])]), 1000)
    # one padded batch: three rows as long as the longest, 105
    assert tokens.read(150) == {"tokens/prompt": 140, "tokens/response": 10, "tokens/forward": 150, "tokens/saved": 3 * 105 - 150}
    assert tokens.read(0) == {"tokens/prompt": 0, "tokens/response": 0, "tokens/forward": 0, "tokens/saved": 0}, "read starts anew"


@pytest.mark.parametrize("name", ["chains", "trees"])
def test_what_layouts_of_turns_save_by_hand(name: str) -> None:
    # one attempt of three turns: 10 tokens of prompt, answers of 3, observations of 4
    rows: list[Row] = []
    ids: tuple[int, ...] = (1,) * 10
    for turn in range(3):
        prompt = Prompt(sample=sample(), ids=ids, media=(), spans=(), answer_format="answer_only")
        rows.append(Row(index=turn, group=0, prompt=prompt, response=(2,) * 3))
        ids = (*ids, *(2,) * 3, *(1,) * 4)
    layout = LAYOUTS[name]
    (part,) = layout.split(rows, 1000)
    run = layout.pack([rows[n] for n in part], PositionSpec(merge_size=2, tokens_per_second=None), torch.device("cpu"), pad_id=0).tokens
    assert run == 10 + 3 + 4 + 3 + 4 + 3
    tokens = TokenCounter()
    tokens.add(rows, 1000, layout=name)
    found = tokens.read(run)
    assert found[f"tokens/saved_by_{name}"] == (13 + 20 + 27) - run
    assert found["tokens/saved"] == 3 * 27 - run
    assert f"tokens/saved_by_{name}" not in tokens.read(0)


def test_minibatches_add_up_and_the_budget_decides_what_is_padded() -> None:
    first, second = rows_of([(100, [3, 5])]), rows_of([(40, [2])])
    tokens = TokenCounter()
    tokens.add(first, 1000)
    tokens.add(second, 1000)
    assert tokens.read(150)["tokens/saved"] == 2 * 105 + 42 - 150
    assert repeated(first + second, 1000) == 3 * 105
    assert repeated(first + second, 210) == 2 * 105 + 42
    assert repeated(first + second, 1) == 103 + 105 + 42
    assert repeated([], 1000) == 0


@given(
    st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(1, 20), min_size=1, max_size=4)), min_size=1, max_size=5),
    st.integers(1, 400),
)
def test_counts_are_those_of_the_batches_that_would_run(groups: list[tuple[int, list[int]]], budget: int) -> None:
    rows = rows_of(groups)
    ran = {}
    for name in ("repeat", "shared_prefix"):
        layout = LAYOUTS[name]
        spec = PositionSpec(merge_size=2, tokens_per_second=2.0)
        parts = [[rows[place] for place in part] for part in layout.split(rows, budget)]
        ran[name] = sum(layout.pack(part, spec, torch.device("cpu"), pad_id=0).tokens for part in parts)
    assert repeated(rows, budget) == ran["repeat"]
    assert packed(rows, budget) == ran["shared_prefix"]
    tokens = TokenCounter()
    tokens.add(rows, budget)
    found = tokens.read(ran["shared_prefix"])
    assert found["tokens/forward"] + found["tokens/saved"] == ran["repeat"]
    assert found["tokens/prompt"] + found["tokens/response"] <= found["tokens/forward"]
    assert found["tokens/saved"] >= 0


def test_counters_tell_what_was_added() -> None:
    values = {"a": 5, "b": 0}
    counters = Counters({"a": lambda: values["a"]})
    values |= {"a": 7, "b": 3}
    counters.add("b", lambda: values["b"])
    assert counters.read() == {"a": 2.0, "b": 0.0}
    values |= {"a": 7, "b": 10}
    assert counters.read() == {"a": 0.0, "b": 7.0}
