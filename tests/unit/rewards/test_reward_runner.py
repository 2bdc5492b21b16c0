"""rewards.run.runner: a fault is counted, never a score."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.builders import group, sample
from vlmrl.errors import CheckpointError, DataError
from vlmrl.protocols import RewardContext
from vlmrl.rewards.format import format_reward
from vlmrl.rewards.run.runner import RewardRunner, contract_problem
from vlmrl.rewards.temporal_iou import temporal_iou_reward

GROUP = group(["<think>a</think><answer>3 to 5</answer>", "x"])
CTX = RewardContext()


def raising(error):
    def function(group, ctx):
        raise error

    return function


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), RecursionError(), ZeroDivisionError()])
def test_a_raising_column_is_unjudged_and_the_others_stay(error):
    runner = RewardRunner([("bad", 1.0, raising(error)), ("format", 0.5, format_reward)])
    scores = runner.score(GROUP, CTX).scores
    assert scores.rewards_GK == ((None, 1.0), (None, 0.0))
    assert scores.total() == [0.5, 0.0]
    assert scores.reasons == {f"bad/raised:{type(error).__name__}": 2}
    assert type(error).__name__ in runner.first_fault["bad"]


def test_an_interrupt_is_not_a_reward_fault():
    with pytest.raises(KeyboardInterrupt):
        RewardRunner([("bad", 1.0, raising(KeyboardInterrupt()))]).score(GROUP, CTX)


@pytest.mark.parametrize(
    "returned",
    [[1.0], [1.0, 2.0, 3.0], [1.0, float("nan")], [1.0, float("inf")], [1.0, True], [1.0, "1"], "12", b"12", None, 1.0, [1.0, 10**400],
     torch.zeros(2), np.zeros(2), [1.0, torch.zeros(())], [1.0, np.float32(1)], {0: 1.0, 1: 1.0}, iter([1.0, 1.0])],
)  # fmt: skip
def test_broken_contracts(returned):
    assert contract_problem(returned, 2)
    runner = RewardRunner([("bad", 1.0, lambda group, ctx: returned)])
    scores = runner.score(GROUP, CTX).scores
    assert scores.total() == [None, None]
    assert scores.reasons == {"bad/contract": 2}
    assert "row 'row'" in runner.first_fault["bad"]


def test_kept_contracts():
    assert contract_problem([1, 0.5, None], 3) is None
    assert contract_problem((), 0) is None


def test_observe_stops_a_reward_that_keeps_failing_and_its_window_survives():
    runner = RewardRunner([("a", 1.0, format_reward)], max_invalid=0.02)
    for _ in range(60):
        runner.observe({"a": [0, 8]})
    assert len(runner.window) == 50
    again = RewardRunner([("a", 1.0, format_reward)], max_invalid=0.02)
    again.load_state_dict(runner.state_dict())
    again.observe({"a": [8, 8]})
    with pytest.raises(DataError, match="reward 'a' failed for 16 of 400"):
        again.observe({"a": [8, 8]})
    with pytest.raises(CheckpointError):
        again.load_state_dict({})


def test_self_test():
    good = RewardRunner([("temporal_iou", 1.0, temporal_iou_reward), ("format", 0.1, format_reward)])
    assert good.self_test([sample()], "think_answer") == []
    assert "instead of 1" in good.self_test([sample("3.0 to 4.0")], "think_answer")[0]
    assert "junk scores 0.1" in good.self_test([sample("never")], "answer_only")[0]
    constant = RewardRunner([("one", 1.0, lambda group, ctx: [1.0] * len(group.rollouts))])
    assert "junk scores 1" in constant.self_test([sample()], "think_answer")[0]
    silent = RewardRunner([("none", 1.0, lambda group, ctx: [None] * len(group.rollouts))])
    assert "no reward can judge" in silent.self_test([sample()], "think_answer")[0]
    broken = RewardRunner([("bad", 1.0, raising(ValueError("why")))])
    assert "why" in broken.self_test([sample()], "think_answer")[0]


def test_the_maximum_of_a_column_is_what_its_registration_says(monkeypatch):
    from vlmrl.protocols import reward as registry
    from vlmrl.registry import Entry

    def half(group, ctx):
        return [0.5 * float("3.0 to 5.0" in r.text) for r in group.rollouts]

    def problems(best, whose):
        extra = {} if best == "unsaid" else {"best": best}
        monkeypatch.setitem(registry._entries, "half", Entry("half", half, None, {}, extra, ours=whose == "ours"))
        return RewardRunner([("named", 1.0, half)], entries={"named": "half"}).self_test([sample()], "think_answer")

    assert "reward 'named' gives its gold answer '3.0 to 5.0' 0.5 instead of 1" in problems("unsaid", "ours")[0]
    assert problems(0.5, "ours") == []
    assert problems(None, "ours") == []
    assert problems("unsaid", "plugin") == []
    assert "0.5 instead of 2" in problems(2, "plugin")[0]
