"""algo.attempts and the advantages of attempts: LOOP, GiGPO, HGPO, turn returns. Numbers by hand, and what must hold for all of them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.attempts import DENSE, GIGPO, attempts, dense, shuffled
from tests.support.builders import inputs
from vlmrl.algo.advantage.gigpo import gigpo
from vlmrl.algo.advantage.trajectory import trajectory
from vlmrl.algo.attempts import before, joint, returns
from vlmrl.zoo.advantage.hgpo import hgpo
from vlmrl.zoo.advantage.trajectory_loop import trajectory_loop
from vlmrl.zoo.advantage.turn_return import turn_return

NAN = float("nan")
METHODS = {"trajectory_loop": trajectory_loop, "gigpo": gigpo, "hgpo": hgpo, "turn_return": turn_return}
STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from([0.0, 0.3, 1.0, -0.5])), min_size=1, max_size=4)


def near(*numbers: list[float]) -> list[float]:
    return pytest.approx([one for part in numbers for one in part], abs=5e-5)


def test_trajectory_loop():
    assert trajectory_loop(attempts(*GIGPO)).tolist() == near([0.5] * 3, [-1.0] * 3, [0.5] * 2)
    assert trajectory_loop(dense(*DENSE)).tolist() == near([0.75] * 3, [-0.9] * 2, [0.15] * 4), "returns 1.2, 0.1, 0.8: 1.2 - 0.45, ..."


def test_gigpo_over_attempts_without_deviation():
    expected = near([0.5733, 0.7833, 0.3333], [-1.2367, -1.1167, -0.6667], [0.6633, 0.3333])
    assert gigpo(attempts(*GIGPO), gamma=0.9).tolist() == expected


def test_gigpo_with_deviation():
    expected = near([1.0615, 1.2845, 0.5773], [-2.3046, -1.8618, -1.1547], [1.2431, 0.5773])
    assert gigpo(attempts(*GIGPO), gamma=0.9, normalise="deviation").tolist() == expected


def test_gigpo_with_the_mean_over_turns_of_the_released_code():
    expected = near([0.6150, 0.8250, 0.3750], [-1.1950, -1.0750, -0.6250], [0.7050, 0.3750])
    assert gigpo(attempts(*GIGPO), gamma=0.9, mean_over="turns").tolist() == expected


def test_hgpo():
    expected = near([0.6310, 0.9512, 0.2357], [-1.4103, -1.0690, -1.4142], [0.7793, 0.2357])
    assert hgpo(attempts(*GIGPO), context=1, gamma=0.9).tolist() == expected


def test_hgpo_without_history_or_base_is_one_regrouping():
    out = hgpo(attempts(*GIGPO), context=0, gamma=0.9, base=False)
    # Q at s0: .81, 0, .9; mean .57, population deviation .4047
    assert out.tolist() == near([0.5930, 1.0, 0.0], [-1.4084, -1.0, 0.0], [0.8154, 0.0])


def test_turn_return():
    x = dense(*DENSE)
    assert turn_return(x).tolist() == near([0.5556, 0.3556, 0.3556], [-0.5444, -0.7444], [0.1556, 0.1556, -0.1444, -0.1444])
    by_turn = turn_return(x, baseline="turn").tolist()
    assert by_turn == near([0.5, 0.4333, 0.25], [-0.6, -0.6667], [0.1, 0.2333, -0.25, 0.0])


def test_returns_and_the_turn_before():
    x = shuffled(dense(*DENSE), [8, 0, 4, 2, 1, 3, 5, 7, 6])
    last = before(x.provided["trajectory_N"], x.provided["turn_N"], "method")
    assert last == [7, -1, 5, 4, 1, -1, -1, 8, 6]
    assert returns(x.reward_N, last, 0.5).tolist() == pytest.approx([0.5, 0.45, -0.1, 1.0, 0.5, 0.15, 0.2125, 0.25, 0.425])
    with pytest.raises(ValueError, match="method: trajectory 0 has two rows of turn 1"):
        before(torch.tensor([0, 0]), torch.tensor([1, 1]), "method")
    assert joint(torch.tensor([1, 1, 2]), torch.tensor([5, 5, 5])).tolist() == [0, 0, 1]


@given(given=st.lists(STEPS, min_size=1, max_size=4))
def test_gigpo_step_parts_of_a_state_sum_to_zero_and_w_0_is_trajectory_without_deviation(given):
    x = attempts(*given)
    state_N = x.provided["state_N"]
    plain = gigpo(x, w=0.0)
    step = gigpo(x) - plain
    for state in state_N.unique():
        assert float(step[state_N == state].sum()) == pytest.approx(0.0, abs=1e-9)
    # divided by a deviation that is far below epsilon's scale, `trajectory` shows its numerator
    torch.testing.assert_close(trajectory(x, epsilon=1e12) * 1e12, plain, rtol=1e-6, atol=1e-6)


@given(given=st.lists(st.lists(st.sampled_from([0.0, 1.0, -0.5]), min_size=1, max_size=4), min_size=1, max_size=4))
def test_gigpo_where_no_state_comes_back_is_that_of_the_attempt(given):
    x = dense(*given)
    torch.testing.assert_close(gigpo(x), gigpo(x, w=0.0))


@pytest.mark.parametrize("name", METHODS)
@given(given=st.lists(STEPS, min_size=1, max_size=4), data=st.data())
def test_the_order_of_the_rows_is_of_no_matter(name, given, data):
    x = attempts(*given)
    order = data.draw(st.permutations(range(len(x.reward_N))))
    torch.testing.assert_close(METHODS[name](shuffled(x, order)), METHODS[name](x)[list(order)])


@pytest.mark.parametrize("name", METHODS)
@given(given=st.lists(STEPS, min_size=1, max_size=4), turns=st.integers(1, 4))
def test_a_fault_changes_no_other_number_and_gets_nothing(name, given, turns):
    x = attempts(*given)
    out = METHODS[name](attempts(*given, [(0, 0, 1.0)] * (turns - 1) + [(1, 0, NAN)]))
    torch.testing.assert_close(out[: len(x.reward_N)], METHODS[name](x))
    assert out[len(x.reward_N) :].tolist() == [0.0] * turns


@pytest.mark.parametrize("name", METHODS)
def test_tasks_do_not_see_each_other(name):
    alone = METHODS[name](attempts(*GIGPO))
    rows = [(float(r), g, True) for g in (0, 3) for r in attempts(*GIGPO).reward_N]
    x = attempts(*GIGPO)
    twice = {
        field: torch.cat([x.provided[field], x.provided[field] + shift])
        for field, shift in (("trajectory_N", 10), ("turn_N", 0), ("state_N", 0))
    }
    torch.testing.assert_close(METHODS[name](dataclasses.replace(inputs(rows), **twice)), torch.cat([alone, alone]))


@pytest.mark.parametrize("name", METHODS)
def test_what_is_missing_or_wrong_is_said(name):
    with pytest.raises(ValueError, match=f"'{name}' needs trajectory_N"):
        METHODS[name](inputs([(1.0, 0, True)]))
    x = dataclasses.replace(attempts([(0, 0, 1.0)], [(0, 0, 0.0)]), trajectory_N=torch.tensor([8, 8]), group_N=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="trajectory 8 are in several groups"):
        METHODS[name](x)
    if name != "trajectory_loop":
        with pytest.raises(ValueError, match=r"gamma is 1\.5"):
            METHODS[name](attempts(*GIGPO), gamma=1.5)
        with pytest.raises(ValueError, match="needs turn_N"):
            METHODS[name](dataclasses.replace(attempts(*GIGPO), turn_N=None))


def test_turns_without_a_state_have_no_step_part():
    unknown = [[(-1, 0, r) for _, _, r in attempt] for attempt in GIGPO]
    torch.testing.assert_close(gigpo(attempts(*unknown)), gigpo(attempts(*GIGPO), w=0.0))
    with pytest.raises(ValueError, match="context is -1"):
        hgpo(attempts(*GIGPO), context=-1)
