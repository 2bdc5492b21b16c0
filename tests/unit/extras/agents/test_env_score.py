"""agents.score: success, its interval and pass@k; faults in no denominator."""

from __future__ import annotations

from vlmrl.extras.agents.score import score
from vlmrl.extras.agents.trajectory import Snapshot, Trajectory, TrajectoryTurn
from vlmrl.metrics.intervals import wilson


def played(outcome: str, *, k: int = 0, turns: int = 1) -> Trajectory:
    if outcome == "timeout":
        return Trajectory(task={"id": "a"}, seed=1, k=k, turns=(), fault=outcome)
    one = TrajectoryTurn(seen=Snapshot(text="", media=(), state="s"), action="a", reward=0.0)
    last = TrajectoryTurn(seen=one.seen, action="a", reward=1.0, outcome=outcome)  # pyright: ignore[reportArgumentType]
    return Trajectory(task={"id": "a"}, seed=1, k=k, turns=(*[one] * (turns - 1), last))


def test_faults_change_no_number_but_their_own() -> None:
    groups = [[played("success", turns=2), played("turns")], [played("success", turns=4), played("success", turns=3)]]
    without = score(groups)
    assert (without.attempts, without.successes, without.rate) == (4, 3, 0.75)
    assert without.pass_at == {1: 0.75, 2: 1.0}
    assert without.turns == 3.0
    assert without.interval is not None
    assert without.lines()[0] == "success: 0.750 (no interval: 2 clusters) (3 of 4 episodes)"
    found = score([[*group, played("timeout", k=2)] for group in groups])
    assert found.lines()[:-1] == without.lines()[:-1]
    assert found.lines()[-1].endswith("timeout 2")
    assert without.lines()[-1].endswith("none")


def test_tasks_that_were_tried_once_have_wilsons_interval() -> None:
    found = score([[played("success")], [played("failure")], [played("timeout")]])
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == wilson(1, 2)
    assert found.lines()[0] == f"success: 0.500 [{wilson(1, 2)[0]:.3f}, {wilson(1, 2)[1]:.3f}] (1 of 2 episodes)"


def test_nothing_whole_is_no_rate() -> None:
    found = score([[played("timeout")]])
    assert found.rate is None
    assert found.lines() == ["success: unknown, no episode is whole", "faults, in none of these numbers: timeout 1"]
