"""algo.advantage.ema_grpo against a plain reimplementation of running moments."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.registries import advantage
from vlmrl.zoo.advantage.ema_grpo import ema_grpo, update

NAN = float("nan")
STEPS = st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=6), min_size=1, max_size=5)


def of(*groups, tasks=None, state=None, names=("left", "right")):
    rows = [(float(v), g, v == v) for g, values in enumerate(groups) for v in values]
    which = [0 if tasks is None else tasks[g] for _, g, _ in rows]
    memory = {name: torch.tensor(values, dtype=torch.float64) for name, values in (state or {}).items()}
    return dataclasses.replace(inputs(rows, tasks=which), tasks=names, memory=memory)


def test_first_step_uses_the_deviation_of_its_own_rewards():
    # moments of 1 0 0 0 1 1 1 0: mean 0.5, variance 0.25
    out = ema_grpo(of([1, 0, 0, 0], [1, 1, 1, 0]), epsilon=0.0).tolist()
    assert out == pytest.approx([1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5])
    assert ema_grpo(of([1, 0])).tolist() == pytest.approx([0.5 / 0.500001, -0.5 / 0.500001], rel=1e-9)


def test_later_steps_count_themselves_before_use():
    # first moment 0.9 * 0.2 + 0.1 * 0.5 = 0.23; second 0.9 * (0.5 + 0.04) + 0.1 * 0.5 = 0.536; deviation sqrt(0.536 - 0.0529)
    out = ema_grpo(of([1, 0], state={"left": [0.2, 0.5]}), decay=0.9, epsilon=0.0).tolist()
    assert out == pytest.approx([0.5 / 0.4831**0.5, -0.5 / 0.4831**0.5])


@given(steps=STEPS, decay=st.sampled_from([0.0, 0.5, 0.99]))
def test_update_keeps_running_first_and_second_moments(steps, decay):
    state: dict[str, list[float]] = {}
    first = second = None
    for values in steps:
        state = update(state, of(values), decay=decay)
        one, two = sum(values) / len(values), sum(v * v for v in values) / len(values)
        first = one if first is None else decay * first + (1 - decay) * one
        second = two if second is None else decay * second + (1 - decay) * two
    assert first is not None
    assert second is not None
    assert state == {"left": pytest.approx([first, second - first**2], abs=1e-9)}


def test_update_is_pure_and_keeps_tasks_that_this_step_lacks():
    state = {"left": [0.2, 0.5], "elsewhere": [7.0, 1.0], "right": [0.0, 4.0]}
    x = of([1, 0], [NAN, NAN], tasks=[0, 1])
    out = update(state, x, decay=0.9)
    assert state == {"left": [0.2, 0.5], "elsewhere": [7.0, 1.0], "right": [0.0, 4.0]}
    assert out == {"left": pytest.approx([0.23, 0.4831]), "elsewhere": [7.0, 1.0], "right": [0.0, 4.0]}
    assert ema_grpo(dataclasses.replace(x, memory={k: torch.tensor(v) for k, v in state.items()})).shape == (4,)


def test_state_goes_by_name_as_ids_change_from_step_to_step():
    state = update({}, of([1, 0], [8, 2], tasks=[0, 1], names=("left", "right")))
    assert state == {"left": [0.5, 0.25], "right": [5.0, 9.0]}
    later = update(state, of([8, 2], tasks=[0], names=("right",)), decay=0.5)
    assert later == {"left": [0.5, 0.25], "right": [5.0, 9.0]}


def test_large_rewards_do_not_lose_their_deviation():
    assert update(update({}, of([1e9, 1e9 + 1])), of([1e9, 1e9 + 1]))["left"][1] == pytest.approx(0.25)


def test_tasks_are_scaled_apart():
    out = ema_grpo(of([1, 0], [100, 0], tasks=[0, 1]), epsilon=0.0).tolist()
    assert out == pytest.approx([1, -1, 1, -1])


def test_a_group_beyond_the_guard_uses_its_own_population_deviation():
    state = {"left": [0.0, 0.0001]}
    out = ema_grpo(of([1, 0, 0, 0], [0.01, 0], state=state), decay=0.9999, epsilon=0.0).tolist()
    assert out[:4] == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])
    assert out[4] == -out[5]
    assert 0.3 < out[4] < 0.5
    wide = ema_grpo(of([1, 0, 0, 0], [0.01, 0], state=state), decay=0.9999, epsilon=0.0, guard=1000.0).tolist()
    assert wide[0] > 50
    assert wide[4:] == out[4:]


def test_the_deviation_has_a_floor():
    state = {"left": [0.0, 1e-12]}
    out = ema_grpo(of([1e-3, 0], state=state), decay=0.99999, epsilon=0.0).tolist()
    assert out == pytest.approx([0.5, -0.5])


def test_flat_groups_are_zero_but_their_rewards_count():
    # 1 0 3 3 9: mean 3.2, variance 20 - 10.24
    out = ema_grpo(of([1, 0], [3, 3], [9], [NAN, NAN]), epsilon=0.0).tolist()
    assert out == pytest.approx([0.5 / 9.76**0.5, -0.5 / 9.76**0.5, 0, 0, 0, 0, 0])
    assert out[2:] == [0.0] * 5


def test_what_the_trainer_finds_in_the_registry():
    extra = advantage.get("ema_grpo").extra
    assert extra["remembers"] is update
    assert extra["needs"] == ("tasks",)
    assert set(advantage.get("ema_grpo").parameters) >= {"decay"}


def test_what_is_missing_or_wrong_is_said():
    x = of([1, 0])
    with pytest.raises(ValueError, match="'ema_grpo' needs its memory"):
        ema_grpo(dataclasses.replace(x, memory=None))
    with pytest.raises(ValueError, match=r"task id 0 has no name in AdvantageInputs.tasks \(empty\)"):
        ema_grpo(dataclasses.replace(x, tasks=()))
    with pytest.raises(ValueError, match="decay is 1"):
        ema_grpo(x, decay=1.0)
    with pytest.raises(ValueError, match="min_std 0"):
        ema_grpo(x, min_std=0.0)
    with pytest.raises(ValueError, match=r"state of task 'left' is \[1.0\], not \[mean, variance\]"):
        update({"left": [1.0]}, x)
