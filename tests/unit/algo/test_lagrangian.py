"""algo.constraint.lagrangian: the worked numbers of Faithful GRPO."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.constraint import PartialMean, constraint, merge
from vlmrl.algo.constraint.lagrangian import combine, constraint_advantage, dual_step, lagrangian, measure, whiten
from vlmrl.algo.inputs import AdvantageInputs

NAN = float("nan")
TAU = {"consistency": 0.95}
TASK = [1.0, 1.0, 1.0, 0.5, 0.5]


def scored(consistency: list[float], task: list[float] | None = None, groups: list[int] | None = None) -> AdvantageInputs:
    task = TASK if task is None else task
    x = inputs([(r, g, True) for r, g in zip(task, groups or [0] * len(task), strict=True)])
    both = torch.stack([x.reward_N, torch.tensor(consistency, dtype=torch.float64)], dim=1)
    return dataclasses.replace(x, rewards_NK=both, columns=("task", "consistency"))


def test_lagrangian():
    for before, tau, mean, after in ((1.0, 0.95, 0.70, 1.0125), (1.0, 0.95, 1.0, 0.9975), (4.999, 0.95, 0.0, 5.0), (0.001, 0.95, 1.0, 0.0)):
        assert dual_step(before, mean, tau, eta=0.05, high=5.0) == pytest.approx(after)
        got = lagrangian({"c": before}, {"c": PartialMean(20 * mean, 20)}, thresholds={"c": tau})
        assert got == pytest.approx({"c": after})


def test_it_starts_at_one_and_waits_for_eight():
    assert lagrangian({}, {}, thresholds={"b": 0.5, "a": 0.9}) == {"a": 1.0, "b": 1.0}
    assert lagrangian({}, {}, thresholds=TAU, start=0.2) == {"consistency": 0.2}
    few, enough = {"consistency": PartialMean(0.0, 7)}, {"consistency": PartialMean(0.0, 8)}
    assert lagrangian({"consistency": 0.3}, few, thresholds=TAU) == {"consistency": 0.3}
    assert lagrangian({"consistency": 0.3}, enough, thresholds=TAU) == pytest.approx({"consistency": 0.3475})
    assert lagrangian({"consistency": 0.3}, {}, thresholds=TAU, min_applicable=0) == {"consistency": 0.3}


def test_the_worked_group():
    x = scored([1.0, 0.0, 1.0, NAN, NAN])
    task = grpo(x)
    assert task.tolist() == pytest.approx([0.7303] * 3 + [-1.0954] * 2, abs=1e-3)
    before = task + constraint_advantage(x, "consistency")
    assert before.tolist() == pytest.approx([1.3076, -0.4244, 1.3076, -1.0954, -1.0954], abs=1e-3)
    got = combine(x, task, {"consistency": 1.0})
    assert got.tolist() == pytest.approx((before / before.std()).tolist(), rel=1e-5)


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=10),
    st.lists(st.sampled_from([NAN, 0.0, 1.0]), min_size=10, max_size=10),
)
def test_without_multipliers_it_is_the_whitened_task(task: list[float], consistency: list[float]):
    groups = [i % 2 for i in range(len(task))]
    x = scored(consistency[: len(task)], task, groups)
    assert torch.equal(combine(x, grpo(x), {"consistency": 0.0}), whiten(grpo(x), x.valid_N))


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=6, max_size=6), st.floats(0.5, 50))
def test_the_scale_of_a_constraint_does_not_matter(values: list[float], factor: float):
    task, groups = [1.0, 0.0, 0.5, 1.0, 1.0, 0.0], [0, 0, 0, 1, 1, 1]
    one, two = scored(values, task, groups), scored([factor * v for v in values], task, groups)
    torch.testing.assert_close(
        combine(one, grpo(one), {"consistency": 2.0}), combine(two, grpo(two), {"consistency": 2.0}), rtol=1e-4, atol=1e-4
    )


@given(st.permutations(range(6)))
def test_permuting_rollouts_permutes_the_result(order: list[int]):
    values, task, groups = [1.0, 0.0, NAN, 1.0, 0.5, 0.5], [1.0, 0.0, 0.5, 1.0, 1.0, 0.0], [0, 0, 0, 1, 1, 1]
    x = scored(values, task, groups)
    y = scored([values[i] for i in order], [task[i] for i in order], [groups[i] for i in order])
    torch.testing.assert_close(combine(y, grpo(y), {"consistency": 1.5}), combine(x, grpo(x), {"consistency": 1.5})[order])


def test_silent_constraints_and_flat_tasks():
    flat = scored([1.0, 0.0, 1.0, 0.0, 1.0], [1.0] * 5)
    assert combine(flat, grpo(flat), {"consistency": 1.0}).abs().min() > 0
    assert combine(flat, grpo(flat), {}).tolist() == [0.0] * 5
    assert constraint_advantage(scored([1.0, NAN, NAN, NAN, NAN]), "consistency").tolist() == [0.0] * 5
    assert constraint_advantage(scored([0.1 + 0.2, 0.3, 0.3, 0.3, NAN]), "consistency").tolist() == [0.0] * 5
    assert constraint_advantage(scored([NAN] * 5), "consistency").tolist() == [0.0] * 5


def test_groups_without_signal_stay_exactly_zero():
    x = scored([NAN] * 5, [0.0, 1.0, 1.0, 0.3, 0.1 + 0.2], [0, 0, 0, 1, 1])
    got = combine(x, grpo(x), {"consistency": 1.0})
    assert got[3:].tolist() == [0.0, 0.0]
    assert got[0] < 0 < got[1]


def test_unjudged_rollouts_get_nothing_and_move_nobody():
    rows = [(1.0, 0, True), (0.0, 0, True), (0.5, 0, True)]
    x, y = inputs(rows), inputs([*rows, (NAN, 0, False)])
    got = combine(y, grpo(y), {})
    assert got[3] == 0.0
    assert torch.equal(got[:3], combine(x, grpo(x), {}))
    assert not got.requires_grad


def test_measure_is_a_masked_mean_of_sampled_rows():
    x = dataclasses.replace(scored([1.0, 0.0, 0.5, NAN, 1.0]), on_policy_N=torch.tensor([True, True, True, True, False]))
    assert measure(x, ["consistency"]) == {"consistency": PartialMean(1.5, 3)}
    assert measure(x, ["consistency"])["consistency"].mean == 0.5
    with pytest.raises(ValueError, match="no reward column 'grounding'"):
        measure(x, ["grounding"])


def test_ranks_that_merge_agree():
    parts = [{"c": PartialMean(1.0, 4)}, {}, {"c": PartialMean(5.0, 6), "g": PartialMean(0.0, 0)}]
    assert merge(parts) == {"c": PartialMean(6.0, 10), "g": PartialMean(0.0, 0)}
    assert PartialMean(0.0, 0).mean != PartialMean(0.0, 0).mean


def test_the_dual_goes_through_json_and_goes_on():
    update = constraint.bind("lagrangian", {"thresholds": {"c": 0.95, "g": 0.65}})
    seen = [{"c": PartialMean(float(n), 10), "g": PartialMean(9.0 - n, 10)} for n in range(9)]
    dual, other = update({}, {}), update({}, {})
    for n, measured in enumerate(seen):
        dual = update(dual, measured)
        other = update(json.loads(json.dumps(other)), measured)
        assert all(0 <= v <= 5 for v in dual.values()), n
    assert dual == other
    assert constraint.get("lagrangian").extra["acts_on"] == "advantage"


@given(st.floats(0, 5), st.floats(0, 1), st.floats(0, 1))
def test_a_multiplier_rises_where_violated(before: float, mean: float, tau: float):
    after = dual_step(before, mean, tau, eta=0.05, high=5.0)
    assert 0 <= after <= 5
    assert (after >= before) if mean < tau else (after <= before)


@pytest.mark.parametrize("bad", [{"thresholds": {}}, {"eta": -1.0}, {"start": 9.0}])
def test_arguments_are_checked(bad: dict):
    with pytest.raises(ValueError, match="constraint 'lagrangian'"):
        lagrangian({}, {}, **({"thresholds": TAU} | bad))
    with pytest.raises(ValueError, match="stored multipliers are of"):
        lagrangian({"other": 1.0}, {}, thresholds=TAU)
