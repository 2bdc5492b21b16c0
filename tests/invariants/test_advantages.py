"""What holds for every registered advantage, credit, shape and selection, whatever its name."""

from __future__ import annotations

import dataclasses
import functools
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs as rewards_only
from vlmrl.algo import registries
from vlmrl.methods import registries as load_all

load_all()
ADVANTAGES = registries.advantage.names()
SHAPES = registries.reward_shaping.names()
SELECTS = registries.rollout_filter.names()
CREDITS = registries.credit.names()
GROUP_BASELINE = [name for name in ADVANTAGES if registries.advantage.get(name).extra.get("baseline", "group") == "group"]
"""Methods that compare rollouts with their group; others (`baseline="prompt"`, "virtual") can find signal in a group of equal rewards."""
WHOLE_GROUPS = [name for name in SELECTS if registries.rollout_filter.get(name).extra.get("unit", "group") == "group"]
"""Selections that keep or drop groups; others (`unit="rollout"`) pick rollouts."""

BEST = 10.1
REWARDS = st.sampled_from([0.0, 0.1, 0.3, 0.1 + 0.2, 0.5, 1.0, BEST, -2.0])
ROWS = st.lists(st.tuples(REWARDS, st.integers(0, 3), st.booleans()), min_size=1, max_size=14)
"""(reward, group, valid) per rollout. The task is the group's parity."""


def inputs(rows):
    """With every optional field, the same for all rows or made of the row's place: no field orders the rollouts of a group."""
    n = len(rows)
    return dataclasses.replace(
        rewards_only(rows),
        answer_N=torch.zeros(n, dtype=torch.int64),
        logp_N=torch.full((n,), -3.0, dtype=torch.float64),
        baseline_N=torch.full((n,), 0.5, dtype=torch.float64),
        tasks=("even", "odd"),
        trajectory_N=torch.arange(n),
        turn_N=torch.zeros(n, dtype=torch.int64),
        state_N=torch.zeros(n, dtype=torch.int64),
        node_N=torch.arange(n),
        sample_N=torch.zeros(n, dtype=torch.int64),
        question_N=torch.zeros(n, dtype=torch.int64),
        belief_N=torch.full((n,), 0.5, dtype=torch.float64),
        consistency_N=torch.full((n,), 0.6, dtype=torch.float64),
        ids_NT=torch.arange(n)[:, None] * torch.tensor([0, 0, 1]),
        entropy_NT=torch.full((n, 3), 0.7),
        weights_K=torch.tensor([2.0], dtype=torch.float64),
        memory={"odd": torch.tensor([0.4, 0.3], dtype=torch.float64)},
        provided={
            "reliance_N": torch.full((n,), -0.1, dtype=torch.float64),
            "paragraph_NT": torch.zeros((n, 3), dtype=torch.int64),
        },
    )


bound = functools.cache(lambda slot, name: getattr(registries, slot).bind(name))
"""A method with its defaults."""


def bind(name, best):
    """The advantage; one that must be told the largest reward that can be reached (`r_max`) is told `best`."""
    known = registries.advantage.get(name).parameters
    return registries.advantage.bind(name, {"r_max": float(best)}) if "r_max" in known else bound("advantage", name)


@contextmanager
def about(name):
    """Says of which method a failure is. An example is made once and shown to all methods: that takes longer than what they do with it."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{name}: {error}") from error


def column_arguments(name: str, column: str) -> dict[str, str]:
    """Every argument that a shape must be given is the name of a column."""
    return {p.name: column for p in registries.reward_shaping.get(name).parameters.values() if p.required}


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@given(rows=ROWS, data=st.data())
def test_permuting_rollouts_permutes_the_result_of_every_advantage(rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    x, permuted = inputs(rows), inputs([rows[i] for i in order])
    for name in ADVANTAGES:
        with about(name):
            method = bind(name, BEST)
            close(method(permuted), method(x)[list(order)])


@given(value=st.floats(-1e6, 1e6), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_equal_rewards_give_exactly_zero_by_every_advantage(value, sizes):
    rows = [(value, g, True) for g, size in enumerate(sizes) for _ in range(size)]
    x = inputs(rows)
    for name in ADVANTAGES:
        with about(name):
            assert bind(name, value)(x).tolist() == [0.0] * len(rows)


@pytest.mark.parametrize("name", GROUP_BASELINE)
@pytest.mark.parametrize("values", [[0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2], [10.1] * 16, [0.1] * 8])
def test_rounding_is_no_signal(name, values):
    rows = [(v, 0, True) for v in values] + [(0.0, 2, True), (0.5, 2, True), (1.0, 2, True)]
    out = bind(name, BEST)(inputs(rows))
    assert out[: len(values)].tolist() == [0.0] * len(values)
    assert out[-1] > 0 > out[-3]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_rounding_does_not_part_equal_rewards(name):
    out = bind(name, 1.0)(inputs([(0.1 + 0.2, 0, True), (0.3, 0, True), (1.0, 0, True), (0.0, 0, True)]))
    close(out[0], out[1])


@given(rows=ROWS)
def test_invalid_rows_are_zero_and_move_nobody_in_every_advantage(rows):
    valid = [i for i, (_, _, ok) in enumerate(rows) if ok]
    invalid = [i for i, (_, _, ok) in enumerate(rows) if not ok]
    x, alone = inputs(rows), inputs([rows[i] for i in valid])
    for name in ADVANTAGES:
        with about(name):
            method = bind(name, BEST)
            out = method(x)
            assert out[invalid].tolist() == [0.0] * len(invalid)
            if valid:
                close(out[valid], method(alone))


@given(rewards=st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=8), groups=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_every_advantage_is_finite(rewards, groups):
    x = inputs([(r, g, True) for r, g in zip(rewards, groups, strict=False)])
    for name in ADVANTAGES:
        with about(name):
            assert bind(name, max(rewards))(x).isfinite().all()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_group_of_one_and_no_groups_at_all(name):
    method = bind(name, 3.0)
    assert method(inputs([(3.0, 0, True)])).tolist() == [0.0]
    assert method(inputs([(3.0, 0, False), (1.0, 0, False)])).tolist() == [0.0, 0.0]
    assert method(inputs([])).shape == (0,)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_no_gradient(name):
    x = inputs([(0.0, 0, True), (1.0, 0, True)])
    x.reward_N.requires_grad_()
    assert not bind(name, 1.0)(x).requires_grad


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_better_rollout_never_gets_less(name):
    values = [0.2, 0.9, 0.2, 0.5, -1.0]
    out = bind(name, 1.0)(inputs([(v, 0, True) for v in values])).tolist()
    ranked = [out[i] for i in (4, 0, 2, 3, 1)]
    assert ranked == sorted(ranked)
    assert ranked[0] < ranked[1] == ranked[2] < ranked[3] < ranked[4]


@pytest.mark.parametrize("name", CREDITS)
def test_credit_is_zero_outside_the_mask_and_finite(name):
    x = inputs([(0.0, 0, True), (1.0, 0, True)])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    out = registries.credit.bind(name)(x, torch.tensor([-1.0, 1.0], dtype=torch.float64), mask)
    assert out.shape == mask.shape
    assert out[~mask].tolist() == [0.0, 0.0, 0.0]
    assert out.isfinite().all()


@given(rows=ROWS)
def test_every_selection_says_for_every_rollout_whether_it_stays_and_why(rows):
    x = inputs(rows)
    for name in SELECTS:
        with about(name):
            keep, reason = bound("rollout_filter", name)(x)
            assert keep.dtype == torch.bool
            assert keep.shape == (len(rows),)
            assert reason


@given(rows=ROWS)
def test_every_selection_keeps_or_drops_whole_groups(rows):
    x = inputs(rows)
    for name in WHOLE_GROUPS:
        with about(name):
            keep, _ = bound("rollout_filter", name)(x)
            kept: dict[int, set[bool]] = {}
            for (_, group, _), k in zip(rows, keep.tolist(), strict=True):
                kept.setdefault(group, set()).add(k)
            assert all(len(values) == 1 for values in kept.values())


@given(rows=ROWS)
def test_every_shaping_keeps_what_is_unjudged_and_leaves_its_input_alone(rows):
    x = inputs(rows)
    before = x.rewards_NK.clone()
    for name in SHAPES:
        with about(name):
            out = registries.reward_shaping.bind(name, column_arguments(name, "task"))(x.rewards_NK, x.valid_N, x)
            torch.testing.assert_close(x.rewards_NK, before, equal_nan=True, rtol=0, atol=0)
            assert torch.equal(out.isnan(), before.isnan())
            assert out.shape == before.shape


@pytest.mark.parametrize("name", SHAPES)
def test_shaping_names_an_unknown_column(name):
    x = inputs([(0.0, 0, True)])
    with pytest.raises(ValueError, match="no reward column 'speed'"):
        registries.reward_shaping.bind(name, column_arguments(name, "task") | {"reward": "speed"})(x.rewards_NK, x.valid_N, x)
