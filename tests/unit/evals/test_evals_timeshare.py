"""Time tables: shares by hand, nested lines counted once, and the rest said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.evals.score.timeshare import covered, step_phases, time_shares


def test_shares_by_hand():
    lines = [
        {"stage": "a", "wall": 10.0, "time/step_total": 4.0, "time/rollout": 2.0, "time/score": 0.5, "loss": 1.0},
        {"stage": "a", "wall": 14.0, "time/step_total": 4.0, "time/rollout": 3.0},
        {"stage": "a", "wall": 14.5, "eval/miou": 0.3},
    ]
    found = time_shares(lines)
    assert found.wall == 8.0
    assert [(p.name, p.seconds, p.share) for p in found.phases] == [("rollout", 5.0, 0.625), ("score", 0.5, 0.0625)]
    assert (found.unexplained, found.unexplained_share) == (2.5, 0.3125)


def test_a_line_about_the_whole_process_is_not_counted_twice():
    steps = [{"wall": 100.0 + n, "time/step_total": 1.0, "time/rollout": 0.75} for n in range(10)]
    whole = {"stage": "run", "wall": 111.0, "time/step_total": 16.0, "time/evaluate": 4.0}  # from 95 to 111
    found = time_shares([*steps, whole])
    assert found.wall == 16.0
    assert {p.name: p.seconds for p in found.phases} == {"rollout": 7.5, "evaluate": 4.0}
    assert found.unexplained == 4.5
    # A process before it, that was killed: its steps count as they are.
    earlier = [{"wall": 50.0 + n, "time/step_total": 1.0, "time/rollout": 0.5} for n in range(3)]
    assert time_shares([*earlier, *steps, whole]).wall == 19.0


def test_a_phase_that_is_divided_is_what_its_parts_leave():
    line = {"wall": 9.0, "global_step": 1, "stage": "a", "time/step_total": 8.0, "time/rollout": 6.0, "time/score": 1.0}
    divided = line | {"time/environment": 4.0, "time/sampling": 1.5}
    found = time_shares([divided])
    assert {p.name: p.seconds for p in found.phases} == {"environment": 4.0, "sampling": 1.5, "rollout": 0.5, "score": 1.0}
    assert found.unexplained == 1.0
    wanted = {"environment": 4.0, "sampling": 1.5, "rollout": 0.5, "score": 1.0, "unexplained": 1.0}
    assert step_phases([divided]) == [(1, "a", wanted)]
    # sampled in a thread beside the update, which waited for less
    assert time_shares([line | {"time/environment": 4.0, "time/sampling": 2.5}]) == time_shares([line])


def test_milestones_are_no_phases():
    found = time_shares([{"wall": 5.0, "time/step_total": 1.0, "time/to_first_rl_step": 4.5}, {"time/to_first_rl_step": 9.0}])
    assert found.phases == ()
    assert found.milestones == {"first_rl_step": 4.5}


def test_lines_without_a_stamp_and_no_lines():
    assert time_shares([{"time/step_total": 2.0, "time/a": 1.0}] * 3).wall == 6.0
    empty = time_shares([])
    assert (empty.wall, empty.phases, empty.unexplained_share) == (0.0, (), 0.0)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda p: (float(p[0]), float(p[0] + p[1])))))
def test_union_of_intervals(intervals):
    cells = {n for start, stop in intervals for n in range(int(start), int(stop))}
    assert covered(intervals) == pytest.approx(len(cells))
