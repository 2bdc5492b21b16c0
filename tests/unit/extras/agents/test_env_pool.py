"""agents.pool: a crash costs a retry and changes nothing; what fails for good is a fault, and never a reward."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.pool import EnvPool, PoolSettings
from vlmrl.extras.agents.reply import Reply

SETTINGS = PoolSettings(workers=1, start=60.0, deadline=20.0)
ODD = ("tests.support.odd_worlds",)


def run(pool: EnvPool, seed: int, *, kill_at: int | None = None) -> list[Reply]:
    """An episode along the solution."""
    episode = pool.episode({"length": 3}, seed)
    replies = [episode.reset().result()]
    while not replies[-1].done:
        if kill_at == len(replies):
            os.kill(episode.pid() or 0, signal.SIGKILL)
        action = episode.solve().result().action
        replies.append(episode.step(action or "").result())
    episode.close()
    return replies


@pytest.fixture(scope="module")
def whole() -> list[list[Reply]]:
    with open_pool("toy_desk", settings=SETTINGS) as pool:
        return [run(pool, seed) for seed in range(6)]


@pytest.mark.parametrize("fault", ["kill", "raise", "memory"])
def test_crashes_change_nothing(whole, fault):
    with open_pool("toy_desk", {"crash_share": 0.5, "fault": fault}, settings=SETTINGS) as pool:
        assert [run(pool, seed) for seed in range(6)] == whole
        assert sum(pool.retried.values()) >= 2
        assert not pool.faults


def test_a_process_that_is_killed_in_the_middle_goes_on_as_it_was(whole):
    with open_pool("toy_desk", settings=SETTINGS) as pool:
        assert run(pool, 0, kill_at=2) == whole[0]
        assert pool.retried == Counter({"crashed": 1})
    assert pool.pids() == []


@pytest.mark.parametrize(("fault", "reason"), [("raise", "raised:RuntimeError"), ("kill", "crashed"), ("memory", "memory")])
def test_what_always_fails_is_a_fault_without_a_reward(fault, reason):
    with open_pool("toy_desk", {"crash_share": 1.0, "fault": fault, "fault_attempts": 99}, settings=SETTINGS) as pool:
        episodes = [run(pool, seed) for seed in range(2)]
        last = [replies[-1] for replies in episodes]
        assert [reply.fault for reply in last] == [reason] * 2
        assert all(reply.reward is None and reply.done for reply in last)
        assert sum(reply.reward or 0.0 for replies in episodes for reply in replies) == 0.0
        with pytest.raises(ValueError, match=reason):
            last[0].transition()
        assert pool.faults == Counter({reason: 2})
        assert pool.retried == Counter({reason: 4})


def test_a_fault_is_told_by_the_first_line_of_its_message():
    """Playwright's messages end in the rim of a box."""
    rim = "╔═══╗\n║ run: playwright install ║\n╚═══╝\n"
    detail = f"Traceback (most recent call last):\n  File 'a.py', line 1, in step\nerrors.LaunchError: no browser there\n{rim}"
    assert Reply(fault="raised:LaunchError", detail=detail).told == "errors.LaunchError: no browser there"
    assert Reply(fault="raised:Other", detail=detail).told == "╚═══╝"
    assert Reply(fault="timeout", detail="it took 20 s\n").told == "it took 20 s"
    assert Reply(fault="timeout").told == ""


def test_a_hang_is_a_timeout():
    settings = PoolSettings(workers=1, start=60.0, deadline=1.0, retries=0)
    with open_pool("odd", {"how": "slow"}, plugins=ODD, settings=settings) as pool:
        assert pool.episode({}, 0).reset().result().fault == "timeout"


@pytest.mark.parametrize(("how", "reason"), [("no observation", "protocol"), ("infinite", "protocol")])
def test_what_no_environment_may_return_is_a_fault(how, reason):
    with open_pool("odd", {"how": how}, plugins=ODD, settings=SETTINGS) as pool:
        episode = pool.episode({}, 0)
        episode.reset().result()
        assert episode.step("stop").result().fault == reason


def test_another_screen_after_a_crash_is_drift_and_not_a_reward():
    with open_pool("odd", {"how": "rambling"}, plugins=ODD, settings=SETTINGS) as pool:
        episode = pool.episode({}, 0)
        episode.reset().result()
        assert episode.step("stop").result().fault is None
        os.kill(episode.pid() or 0, signal.SIGKILL)
        assert episode.step("stop").result().fault == "drift"
        assert episode.step("stop").result().fault == "drift"


def test_a_worker_is_replaced_after_its_episodes_and_several_live_in_one(whole):
    settings = PoolSettings(workers=1, start=60.0, episodes=2)
    with open_pool("toy_desk", settings=settings) as pool:
        two = [pool.episode({"length": 3}, seed) for seed in (0, 1)]
        firsts = [episode.reset().result() for episode in two]
        assert firsts == [whole[0][0], whole[1][0]]
        assert len({episode.pid() for episode in two}) == 1
        for episode in two:
            episode.close()
        assert run(pool, 2) == whole[2]
        assert pool.started == 2


def test_names_and_arguments_are_checked_before_anything_starts():
    with pytest.raises(ConfigError, match="did you mean 'toy_desk'"):
        open_pool("toy_desc")
    with pytest.raises(ConfigError, match=r"environment\.crash_share: expected float, got str"):
        open_pool("toy_desk", {"crash_share": "often"})
    with pytest.raises(ValueError, match="at least one worker"):
        open_pool("toy_desk", settings=PoolSettings(workers=0))
