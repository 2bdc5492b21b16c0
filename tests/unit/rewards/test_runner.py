"""The reward border: every way to break the contract, the watch on faults, and the self-test."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import vlmrl.rewards.exact
import vlmrl.rewards.format
import vlmrl.rewards.temporal_iou  # noqa: F401 (importing registers them)
from vlmrl.errors import CheckpointError, DataError
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.run.runner import WINDOW, RewardRunner, contract_problem
from vlmrl.types import Group, Prompt, Rollout, Sample, Scores


def sample(answer: str = "3.0 to 5.0", time: list[float] | None = None, thought: str | None = None) -> Sample:
    span = [3.0, 5.0] if time is None else time
    return Sample(
        id="row-7",
        task="t",
        answer_type="time_span",
        question="q",
        media=(),
        answer=answer,
        gt={"time": span},
        thought=thought,
        source="d.jsonl:7",
    )


def group(n: int = 3) -> Group:
    prompt = Prompt(sample=sample(), ids=(), media=(), spans=(), answer_format="think")
    rollouts = tuple(Rollout(k=k, ids=(), logprobs=(), text=f"{k}", finish="stop", policy_version=0) for k in range(n))
    return Group(id="g", prompt=prompt, rollouts=rollouts)


def by_number(group: Group, ctx: RewardContext) -> list[float]:
    return [float(r.text) for r in group.rollouts]


def always(value: Any) -> Callable[[Group, RewardContext], Any]:
    return lambda group, ctx: value


def raising(error: BaseException) -> Callable[[Group, RewardContext], Any]:
    def call(group: Group, ctx: RewardContext) -> Any:
        raise error

    return call


def scores(*columns: tuple[str, float, Any]) -> Scores:
    return RewardRunner(list(columns)).score(group(), RewardContext()).scores


def test_columns_weights_and_total() -> None:
    got = scores(("a", 1.0, by_number), ("b", 0.5, always([4, None, 2.0])))
    assert got.columns == ("a", "b")
    assert got.weights == (1.0, 0.5)
    assert got.rewards_GK == ((0.0, 4.0), (1.0, None), (2.0, 2.0))
    assert got.total() == [2.0, 1.0, 3.0]
    assert got.reasons == {}
    assert type(got.rewards_GK[0][1]) is float


def test_context_and_group_are_passed_on() -> None:
    seen: list[Any] = []

    def spy(group: Group, ctx: RewardContext) -> list[float]:
        seen.append((group.id, ctx.progress))
        return [0.0] * 3

    RewardRunner([("a", 1.0, spy)]).score(group(), RewardContext(progress=0.25))
    assert seen == [("g", 0.25)]


@pytest.mark.parametrize(
    "error", [ValueError("bad row"), KeyError("x"), ZeroDivisionError(), RecursionError(), SystemExit(3), OSError(28, "full")]
)
def test_a_reward_that_raises_is_no_judgement(error: BaseException) -> None:
    runner = RewardRunner([("a", 1.0, by_number), ("bad", 1.0, raising(error))])
    got = runner.score(group(), RewardContext()).scores
    assert got.rewards_GK == ((0.0, None), (1.0, None), (2.0, None))
    assert got.total() == [0.0, 1.0, 2.0]
    assert got.reasons == {f"bad/raised:{type(error).__name__}": 3}
    assert type(error).__name__ in runner.first_fault["bad"]
    assert "in call" in runner.first_fault["bad"], "the trace leads to the place"


def test_the_user_can_still_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        scores(("a", 1.0, raising(KeyboardInterrupt())))


def test_a_reward_that_raises_now_and_then() -> None:
    calls = iter([None, ValueError("once"), None])

    def flaky(group: Group, ctx: RewardContext) -> list[float]:
        error = next(calls)
        if error is not None:
            raise error
        return [1.0] * 3

    runner = RewardRunner([("a", 1.0, flaky)])
    got = [runner.score(group(), RewardContext()).scores.total() for _ in range(3)]
    assert got == [[1.0] * 3, [None] * 3, [1.0] * 3]


@pytest.mark.parametrize(
    "returned",
    [
        [1.0, 2.0],
        [1.0] * 4,
        [],
        [1.0, math.nan, 0.0],
        [1.0, math.inf, 0.0],
        [1.0, -math.inf, 0.0],
        [1.0, True, 0.0],
        [1.0, "1", 0.0],
        [1.0, [1.0], 0.0],
        [1.0, 1j, 0.0],
        [10**400, 0.0, 0.0],
        [np.float32(1), 0.0, 0.0],
        [torch.tensor(1.0), 0.0, 0.0],
        torch.zeros(3),
        np.zeros(3),
        "abc",
        b"abc",
        {0: 1.0, 1: 1.0, 2: 1.0},
        None,
        1.0,
        pytest.param((float(i) for i in range(3)), id="generator"),
    ],
    ids=repr,
)
def test_a_broken_contract_is_no_judgement(returned: Any) -> None:
    runner = RewardRunner([("bad", 1.0, always(returned)), ("a", 1.0, by_number)])
    got = runner.score(group(), RewardContext()).scores
    assert got.rewards_GK == ((None, 0.0), (None, 1.0), (None, 2.0))
    assert got.reasons == {"bad/contract": 3}
    assert runner.first_fault["bad"].startswith("bad on row 'row-7': ")


@pytest.mark.parametrize("returned", [[1, 0.5, None], (0.0, -3.5, 1e12), [np.float64(0.5)] * 3, [None] * 3])
def test_a_kept_contract(returned: Any) -> None:
    assert contract_problem(returned, 3) is None


def test_contract_messages_say_what_and_where() -> None:
    assert contract_problem([1.0], 3) == "returned 1 values for 3 rollouts"
    assert contract_problem([1.0, True], 2) == "value 1 is bool True, expected a float or None"
    assert contract_problem([1.0, math.nan], 2) == "value 1 is not a finite float; return None where it cannot be judged"
    assert contract_problem([1.0, -1.1e12], 2) == (
        "value 1 is -1.1e+12, beyond 1e+12, where means and deviations overflow; scale the reward, best to [0, 1]"
    )
    assert "returned Tensor, expected a list" in str(contract_problem(torch.zeros(2), 2))
    assert sys.float_info.max < 10**400


def test_a_reward_that_counts_must_score_something() -> None:
    runner = RewardRunner([("mine", 1.0, by_number), ("format", 0.5, by_number), ("watched", 0.0, by_number)])
    runner.require_verdicts({"mine": 1, "format": 0}, 50)  # a built-in one may be for other rows
    with pytest.raises(DataError, match="reward 'mine' scored none of the rollouts of 50 steps"):
        runner.require_verdicts({"mine": 0, "format": 9, "watched": 0}, 50)
    with pytest.raises(DataError, match="rewards 'mine', 'format' scored none"):
        runner.require_verdicts({}, 50)
    RewardRunner([("watched", 0.0, by_number)]).require_verdicts({}, 50)


def test_a_users_function_under_a_built_in_name_counts_as_the_users() -> None:
    runner = RewardRunner([("score", 1.0, by_number), ("format", 1.0, by_number)], entries={"score": "python", "format": "format"})
    with pytest.raises(DataError, match="reward 'score' scored none"):
        runner.require_verdicts({"format": 3}, 50)


def test_faults_above_the_bound_stop_the_run() -> None:
    """2% of 50 steps of 100 rollouts is 100 faults: the step that goes past them raises, whenever that is."""
    runner = RewardRunner([("a", 1.0, by_number), ("b", 1.0, raising(ValueError("no such key")))], max_invalid=0.02)
    runner.score(group(), RewardContext())
    for _ in range(25):
        runner.observe({"a": [0, 100], "b": [4, 100]})
    with pytest.raises(DataError, match=r"reward 'b' failed for 101 of 2600 rollouts in the last 26 steps(?s:.*)ValueError: no such key"):
        runner.observe({"a": [0, 100], "b": [1, 100]})


def test_the_bound_is_a_share_of_the_window_when_it_is_full() -> None:
    runner = RewardRunner([("a", 1.0, by_number)], max_invalid=0.02)
    for _ in range(WINDOW):
        runner.observe({"a": [2, 100]})
    with pytest.raises(DataError, match="101 of 5000 rollouts in the last 50 steps"):
        runner.observe({"a": [3, 100]})


def test_old_faults_leave_the_window() -> None:
    runner = RewardRunner([("a", 1.0, by_number)], max_invalid=0.02)
    for step in range(4 * WINDOW):
        runner.observe({"a": [90 if step % WINDOW == 0 else 0, 100]})
    assert len(runner.window) == WINDOW


def test_one_bad_group_at_the_start_does_not_stop_a_run_but_a_dead_reward_does_at_once() -> None:
    runner = RewardRunner([("a", 1.0, by_number)], max_invalid=0.02)
    runner.observe({"a": [8, 16]})
    dead = RewardRunner([("a", 1.0, by_number)], max_invalid=0.02)
    dead.observe({"a": [16, 16]})
    with pytest.raises(DataError, match="32 of 32"):
        dead.observe({"a": [16, 16]})


def test_a_bound_of_zero_allows_no_fault() -> None:
    runner = RewardRunner([("a", 1.0, by_number)], max_invalid=0.0)
    runner.observe({"a": [0, 16]})
    with pytest.raises(DataError, match="max_invalid_rewards 0"):
        runner.observe({"a": [1, 16]})


def test_no_rollouts_are_no_fault() -> None:
    runner = RewardRunner([("a", 1.0, by_number)])
    runner.observe({"a": [0, 0]})
    runner.observe({})


def test_a_fault_seen_only_elsewhere_is_said_so() -> None:
    runner = RewardRunner([("a", 1.0, by_number)], max_invalid=0.0)
    with pytest.raises(DataError, match="on another rank"):
        runner.observe({"a": [1, 16]})


def test_the_window_survives_a_restart() -> None:
    runner = RewardRunner([("a", 1.0, by_number)], max_invalid=0.02)
    for _ in range(9):
        runner.observe({"a": [10, 100]})
    again = RewardRunner([("a", 1.0, by_number)], max_invalid=0.02)
    again.load_state_dict(json.loads(json.dumps(runner.state_dict())))
    assert again.state_dict() == runner.state_dict()
    for one in (runner, again):
        with pytest.raises(DataError):
            one.observe({"a": [11, 100]})


@pytest.mark.parametrize("state", [{}, {"window": [], "more": 1}, {"windows": []}])
def test_a_strange_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="window"):
        RewardRunner([]).load_state_dict(state)


def built_in(*names: str, **weights: float) -> RewardRunner:
    return RewardRunner([(name, weights.get(name, 1.0), reward.bind(name)) for name in names])


@pytest.mark.parametrize("answer_format", ["think", "think_or_not", "answer_only"])
def test_self_test_passes_good_rows(answer_format: str) -> None:
    runner = built_in("temporal_iou", "format", "exact", format=0.1)
    assert runner.self_test([sample(), sample(thought="It comes late.")], answer_format) == []


def test_self_test_names_a_gold_answer_that_disagrees_with_its_span() -> None:
    [problem] = built_in("temporal_iou").self_test([sample("3.0 to 4.0")], "think")
    assert problem == "row 'row-7' (d.jsonl:7): reward 'temporal_iou' gives its gold answer '3.0 to 4.0' 0.5 instead of 1"


def test_self_test_names_a_gold_answer_that_cannot_be_read() -> None:
    [problem] = built_in("temporal_iou").self_test([sample("in the middle")], "think")
    assert "junk scores 0, the gold answer 'in the middle' 0" in problem


def test_self_test_names_a_thought_that_breaks_the_form() -> None:
    [problem] = built_in("temporal_iou", "format").self_test([sample(thought="so </think> done")], "think")
    assert "reward 'format' gives its gold answer" in problem


def test_self_test_names_a_reward_that_junk_earns_too() -> None:
    [problem] = RewardRunner([("kind", 1.0, lambda g, c: [1.0] * len(g.rollouts))]).self_test([sample()], "think")
    assert problem == "row 'row-7' (d.jsonl:7): junk scores 1, the gold answer '3.0 to 5.0' 1"


def test_self_test_names_a_reward_that_fails_or_cannot_judge() -> None:
    [failed] = RewardRunner([("bad", 1.0, raising(ValueError("no model")))]).self_test([sample()], "think")
    assert "bad/raised:ValueError" in failed
    assert "no model" in failed
    [silent] = RewardRunner([("mute", 1.0, lambda g, c: [None] * len(g.rollouts))]).self_test([sample()], "think")
    assert "no reward can judge its gold answer" in silent


def test_self_test_says_once_what_fails_on_many_rows() -> None:
    """By the way it fails, each with its count, its first row and the fault of that row; other problems stay those of their rows."""

    def odd(group: Group, ctx: RewardContext) -> list[float]:
        answer = group.prompt.sample.answer
        if answer == "5":
            raise KeyError(f"no {group.prompt.sample.id}")
        return [float(answer == "1")] * len(group.rollouts) if answer != "4" else []

    rows = [dataclasses.replace(sample(answer), id=f"r{n}") for n, answer in enumerate("5155424")]
    problems = RewardRunner([("odd", 1.0, odd)]).self_test(rows, "think")
    assert len(problems) == 4
    assert problems[0].startswith(
        "row 'r0' (d.jsonl:7) and 2 more of 7 rows: rewards failed on the gold or junk answers: odd/raised:KeyError; "
    )
    assert "no r0" in problems[0]
    assert problems[1].startswith("row 'r4' (d.jsonl:7) and 1 more of 7 rows: rewards failed on the gold or junk answers: odd/contract; ")
    assert "no r0" not in problems[1]
    assert [problem.split(":")[0] for problem in problems[2:]] == ["row 'r1' (d.jsonl", "row 'r5' (d.jsonl"]


def test_self_test_says_once_what_no_row_tells() -> None:
    rows = [dataclasses.replace(sample(), id=f"r{n}") for n in range(3)]
    kind = RewardRunner([("kind", 1.0, lambda g, c: [1.0] * len(g.rollouts))])
    [problem] = kind.self_test(rows, "think")
    assert problem == (
        "row 'r0' (d.jsonl:7): junk scores 1, the gold answer '3.0 to 5.0' 1; so do all 3 rows tried: "
        "no reward tells right from wrong; add one: vlmrl list reward"
    )


def test_self_test_reports_every_bad_row() -> None:
    assert len(built_in("temporal_iou").self_test([sample("3.0 to 4.0"), sample(), sample("x")], "think")) == 2
