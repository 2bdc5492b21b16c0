"""train.meter: silent degeneration is said, once per window (W10)."""

from __future__ import annotations

import pytest

from vlmrl.train.meter import (
    RULES,
    AlarmMonitor,
    apart,
    constant_columns,
    longer,
    no_given_rows,
    no_signal,
    rising_faults,
    silent_columns,
    truncated,
    unreadable,
)


def series(key, values):
    return [{key: float(v)} for v in values]


def test_a_column_that_is_constant_for_a_window():
    flat = [{"rewards/a/mean": 0.25, "rewards/b/mean": 0.01 * n, "reward": 1.0} for n in range(50)]
    assert list(constant_columns(flat)) == ["constant/a"]
    assert "reward 'a' has been 0.25 on average for 50 steps" in constant_columns(flat)["constant/a"]
    assert constant_columns(flat[:49]) == {}
    assert constant_columns([{"rewards/a/mean": 0.5}, *flat[1:]]) == {}
    assert constant_columns([{}, *flat[1:]]) == {}  # the column came later
    assert constant_columns([{"rewards/a/mean": 9.0}, *flat]) == constant_columns(flat)


def test_a_column_that_judges_nothing():
    none = [{"rewards/a/judged": 0.0, "rewards/b/judged": 0.5, "rewards/a/mean": 0.0}] * 3
    assert silent_columns(none[:2]) == {}
    assert list(silent_columns(none)) == ["silent/a"]
    assert "reward 'a' has judged no rollout of the last 3 steps" in silent_columns(none)["silent/a"]
    assert silent_columns([{"rewards/a/judged": 0.1, "rewards/b/judged": 1.0}, *none * 5]) == {}, "it has judged within the window"


def test_steps_in_which_no_group_has_a_signal():
    flat = [{"groups_with_signal": 0.0, "rewards/a/mean": 0.5, "rewards/b/mean": 0.1 * n} for n in range(12)]
    assert no_signal(flat[:2]) == {}
    assert (
        "no group of the last 3 steps had answers that differ in reward (a 0.5 on average, b 0.1 on average)"
        in no_signal(flat[:3])["signal"]
    )
    assert "no group of the last 10 steps" in no_signal([{"groups_with_signal": 2.0}, *flat])["signal"]
    assert no_signal([*flat, {"groups_with_signal": 1.0}]) == {}
    assert no_signal([*flat[:8], {"groups_with_signal": 1.0}, flat[8]]) == {}


def test_groups_that_do_not_get_the_row_that_the_strategy_adds():
    none = [{"rollout/given_rows": 0.0, "completions/format_rate": 0.01}] * 12
    assert no_given_rows(none[:2]) == {}
    assert "no group of the last 3 steps got the row that rollout.strategy adds, with 1% of the answers" in no_given_rows(none[:3])["given"]
    assert "no group of the last 10 steps" in no_given_rows([{"rollout/given_rows": 1.0}, *none])["given"]
    assert no_given_rows([*none, {"rollout/given_rows": 0.1}]) == {}
    assert no_given_rows([*none, {"loss": 1.0}]) == {}, "a strategy that adds none"


@pytest.mark.parametrize(
    ("gaps", "alarm"),
    [([0.2] * 2, False), ([0.2] * 3, True), ([0.2, 0.1, 0.2], False), ([0.03] * 50, False), ([0.0] * 10 + [0.11] * 3, True)],
)
def test_a_sampler_that_is_another_policy(gaps, alarm):
    assert bool(apart(series("sampling/logp_gap", gaps))) == alarm
    assert apart([*series("sampling/logp_gap", gaps), {"loss": 1.0}]) == {}, "a step without rollouts to compare"


def test_answers_that_were_sampled_ahead_are_expected_to_differ_a_little():
    window = series("sampling/logp_gap", [0.2] * 3)
    assert "set importance_correction" in apart(window)["apart"]
    assert "the answers are 4 updates old; lower rollout.staleness" in apart([one | {"rollout/staleness": 4.0} for one in window])["apart"]


@pytest.mark.parametrize(
    ("faults", "alarm"),
    [
        ([0] * 20, False),
        ([0] * 17 + [8, 8, 8], True),
        ([0] * 18 + [80, 80], False),  # two steps are not a rise
        ([8] * 3 + [0] * 14 + [16] * 3, True),  # exactly twice
        ([8] * 3 + [0] * 14 + [15] * 3, False),
        ([8] * 20, False),  # steady: the bound on invalid rewards watches that
        ([0] * 16 + [8, 8, 8], False),  # 19 steps
    ],
)
def test_rising_faults(faults, alarm):
    window = [{"fault/reward/a/timeout": n / 2, "fault/reward/b/crashed": n / 2, "fault/media/missing": 99.0} for n in faults]
    assert bool(rising_faults(window)) == alarm
    if alarm:
        said = rising_faults(window)["faults"]
        assert "(a/timeout, b/crashed)" in said
        assert f"{sum(faults[-10:])} rollouts in the last 10 steps, {sum(faults[:10])} in the first 10" in said


@pytest.mark.parametrize(("values", "alarm"), [([0.3] * 10, False), ([0.31] * 10, True), ([1.0] * 9, False), ([1.0] + [0.2] * 10, False)])
def test_truncation(values, alarm):
    assert bool(truncated(series("completions/clipped_ratio", values))) == alarm


@pytest.mark.parametrize(("values", "alarm"), [([0.5] * 10, False), ([0.49] * 10, True), ([0.0] * 9, False), ([0.0] + [1.0] * 10, False)])
def test_unreadable_answers(values, alarm):
    assert bool(unreadable(series("completions/parse_rate", values))) == alarm


def test_length_explosion():
    assert longer(series("completions/mean_length", [100] * 10 + [200] * 10)) == {}
    assert "from 100 to 201 tokens" in longer(series("completions/mean_length", [100] * 10 + [201] * 10))["longer"]
    assert longer(series("completions/mean_length", [100] * 9 + [900] * 10)) == {}
    assert longer(series("completions/mean_length", [0] * 10 + [900] * 10)) == {}
    assert longer([{}] * 30) == {}


def test_steps_without_rewards_raise_no_alarm():
    window = [{"loss": 1.0, "grad_norm": 0.5}] * 50
    assert [rule(window) for rule in RULES] == [{}] * len(RULES)


def test_an_alarm_is_said_once_per_window_and_the_input_is_kept_apart():
    watch = AlarmMonitor()
    step = {"completions/clipped_ratio": 0.9}
    said = [bool(watch.see(step)) for _ in range(120)]
    assert [n for n, s in enumerate(said, 1) if s] == [10, 60, 110]
    assert len(watch.window) == 50
    step["completions/clipped_ratio"] = 0.0
    assert watch.window[-1] == {"completions/clipped_ratio": 0.9}
    assert len(AlarmMonitor().see({"completions/clipped_ratio": 1.0})) == 0
