"""agents.ahead, agents.lane, agents.foresight: when worlds begin changes nothing; one that begins otherwise than it should is named."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.browsers import comes_true
from tests.support.builders import sample
from tests.support.tiny import Tiny
from vlmrl import rng
from vlmrl.extras.agents.conversation import Conversation
from vlmrl.extras.agents.episodes import EnvSetup, anew, run_attempts
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.foresight import Coming, Foresight
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.lane import Lane
from vlmrl.extras.agents.pool import EnvPool, Episode, Past, PoolSettings
from vlmrl.extras.agents.reply import Reply
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.trajectory import Trajectory
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings

LIMITS = PoolSettings(workers=1, start=60.0, deadline=20.0)
ODD = ("tests.support.odd_worlds",)
TASKS: list[tuple[dict[str, Any], int]] = [({"id": "a", "length": 2}, 11), ({"id": "b", "length": 3}, 12)]
WANTED = [(task, seed, 3) for task, seed in TASKS]


def solved(episode: Episode, first: Reply, past: Past | None) -> list[Reply]:
    """An episode along the solution; `past` of the other that has shown its first screen."""
    if past is not None:
        episode.follow(past)
    replies = [first]
    while not replies[-1].done:
        action = episode.solve().result()
        replies.append(action if action.fault is not None else episode.step(action.action or "").result())
    episode.close()
    return replies


def played(pool: EnvPool) -> list[list[list[Reply]]]:
    groups = [pool.ahead.take(*wanted) for wanted in WANTED]
    begin = [
        [(episode, first, None if shown_by is episode else shown_by.past()) for episode, (first, shown_by) in zip(*pair, strict=True)]
        for pair in zip(groups, pool.ahead.firsts(groups), strict=True)
    ]
    return [[solved(*one) for one in group] for group in begin]


@pytest.fixture(scope="module")
def plain() -> list[list[list[Reply]]]:
    with open_pool("toy_desk", settings=dataclasses.replace(LIMITS, ahead=False)) as pool:
        pool.ahead.foresee(WANTED)
        made = played(pool)
        assert (pool.begun(), pool.begun(ahead=True), pool.ahead.drawn_once) == (6, 0, 0)
        return made


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("arguments", [{}, {"crash_share": 0.5}, {"crash_share": 0.5, "fault": "raise"}], ids=str)
def test_what_is_seen_does_not_depend_on_when_worlds_begin(plain, workers: int, arguments: dict[str, Any]) -> None:
    with open_pool("toy_desk", arguments, settings=dataclasses.replace(LIMITS, workers=workers)) as pool:
        assert played(pool) == plain
        pool.ahead.foresee(WANTED)
        assert played(pool) == plain
        pool.ahead.foresee(WANTED)
        assert comes_true(lambda: pool.begun() >= 18), "six more begin though nobody asks"
        assert played(pool) == plain
        assert pool.ahead.drawn_once == 12
        assert pool.begun(ahead=True) >= 6
        assert not pool.faults
        assert (sum(pool.retried.values()) > 0) == bool(arguments)


def test_what_was_begun_and_is_not_wanted_is_thrown_away(plain) -> None:
    with open_pool("toy_desk", settings=LIMITS) as pool:
        played(pool)
        pool.ahead.foresee([({"id": "c"}, 1, 3), WANTED[1]])
        assert comes_true(lambda: pool.begun() == 12)
        pool.ahead.foresee(WANTED)
        assert pool.ahead.thrown_away == 3
        assert comes_true(lambda: pool.begun() == 15), "those that are wanted still are not begun again"
        assert played(pool) == plain
        pool.ahead.foresee([(TASKS[0][0], TASKS[0][1], 5)])
        episodes = pool.ahead.take(*TASKS[0], 2)
        assert len(episodes) == 2
        assert pool.ahead.thrown_away == 6


def test_what_was_begun_for_a_wrong_guess_goes_before_others_are_played() -> None:
    with open_pool("toy_desk", settings=LIMITS) as pool:
        played(pool)
        pool.ahead.foresee([({"id": "c"}, 1, 3), WANTED[0]])
        assert comes_true(lambda: pool.begun() == 12)
        groups = [pool.ahead.take(*wanted) for wanted in WANTED]
        assert pool.ahead.thrown_away == 0
        pool.ahead.firsts(groups)
        assert pool.ahead.thrown_away == 3


def test_no_more_worlds_are_held_than_were_played_at_once() -> None:
    with open_pool("toy_desk", settings=LIMITS) as pool:
        group = pool.ahead.take(*TASKS[0], 2)
        pool.ahead.firsts([group])
        pool.ahead.foresee(WANTED)
        # the two that are played are there: what is asked for comes first, and what can wait has no room
        assert all(episode.step("no action").result().outcome == "invalid" for episode in group)
        assert pool.begun() == 2
        group[0].close()
        assert comes_true(lambda: pool.begun() == 3)
        group[1].close()
        assert comes_true(lambda: pool.begun() == 4)
        for episode in pool.ahead.take(*TASKS[0], 3):
            episode.reset().result()
        assert pool.begun() == 6, "what is asked for has room; of each group the first attempt had begun, and no second one"


def test_a_worker_that_is_killed_while_worlds_wait_in_it(plain) -> None:
    with open_pool("toy_desk", settings=LIMITS) as pool:
        played(pool)
        pool.ahead.foresee(WANTED)
        assert comes_true(lambda: pool.begun() == 12)
        for pid in pool.pids():
            os.kill(pid, signal.SIGKILL)
        assert played(pool) == plain
        assert pool.retried["crashed"] >= 1
        pool.ahead.foresee(WANTED)
    assert pool.pids() == []


@pytest.mark.parametrize("ahead", [True, False])
def test_worlds_that_cannot_begin_are_faults_of_their_attempts(ahead: bool) -> None:
    settings = dataclasses.replace(LIMITS, ahead=ahead)
    with open_pool("odd", {"how": "no observation"}, plugins=ODD, settings=settings) as pool:
        for _ in range(2):
            groups = [pool.ahead.take({}, seed, 2) for seed in (0, 1)]
            assert [[one.fault for one, _ in group] for group in pool.ahead.firsts(groups)] == [["protocol"] * 2] * 2
            pool.ahead.foresee([({}, seed, 2) for seed in (0, 1)])
        assert pool.ahead.drawn_once == 0


@pytest.mark.parametrize("how", ["uneven", "uneven identity"])
def test_a_world_that_begins_otherwise_is_named(how: str) -> None:
    with open_pool("odd", {"how": how}, plugins=ODD, settings=dataclasses.replace(LIMITS, workers=2)) as pool:
        group = pool.ahead.take({}, 3, 2)
        (firsts,) = pool.ahead.firsts([group])
        assert firsts[0] == firsts[1]
        assert firsts[0][1] is group[0]
        group[1].follow(group[0].past())
        assert group[0].step("go").result().fault is None
        came = group[1].step("go").result()
        assert (came.fault, came.reward) == ("unlike", None)
        wanted = "with seed 3 it began otherwise than another attempt" if how == "uneven" else "in another worker"
        assert wanted in came.detail
        assert "environment.ahead" in came.detail
        assert group[1].step("go").result().fault == "unlike"
        assert pool.faults == Counter({"unlike": 1}), "it is not tried again: what it is compared with was seen"


def test_a_world_that_says_that_it_is_not_deterministic_begins_for_itself() -> None:
    with open_pool("odd_bridge", {"how": "uneven"}, plugins=ODD, settings=LIMITS) as pool:
        group = pool.ahead.take({}, 3, 2)
        (firsts,) = pool.ahead.firsts([group])
        assert firsts[0][0] != firsts[1][0]
        assert [shown_by for _, shown_by in firsts] == group
        assert [episode.step("go").result().fault for episode in group] == [None, None]
        pool.ahead.foresee([({}, 4, 2)])
        assert pool.begun() == 2


# ---- whole attempts -------------------------------------------------------------------------------------------------


def apart(place: int, k: int, turn: int) -> int:
    return rng.key(5, place, k, turn)


def attempts(
    tiny: Tiny, folder: Path, *, ahead: bool, name: str = "toy_desk", n: int = 3, rounds: int = 2, seed_of: Any = apart, **arguments: Any
) -> tuple[list[list[Trajectory]], EnvSetup]:
    """So many attempts at each task, in the last of some rounds."""
    engine = HFEngine(tiny.policy, tiny.vision)
    settings = dataclasses.replace(LIMITS, ahead=ahead, retries=0 if name == "odd" else LIMITS.retries)
    with open_pool(name, arguments, plugins=ODD, settings=settings) as pool:
        table = EnvSetup(
            pool=pool,
            talk=anew(engine.generate),
            settings=GenerationSettings(max_new_tokens=6, temperature=0.8),
            conversation=Conversation(dataclasses.replace(tiny.encoder, data_root=folder)),
            handle=lambda ref: tiny.store.get(ref, folder).handle,
            screens=ScreenFolder(folder),
            history=History.of("1"),
            turns=3,
        )
        for _ in range(rounds):
            made = run_attempts(table, TASKS, n, seed_of)
            pool.ahead.foresee([(task, seed, n) for task, seed in TASKS] if rounds > 1 else [])
    return made, table


def test_attempts_are_the_same_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    expected, _ = attempts(tiny, tmp_path, ahead=False)
    made, table = attempts(tiny, tmp_path, ahead=True)
    assert made == expected
    assert table.pool.ahead.drawn_once == 8
    assert all(seconds > 0 for seconds in table.spent.seconds.values())


def test_an_attempt_whose_world_began_otherwise_has_no_reward(tiny: Tiny, tmp_path: Path) -> None:
    made, _ = attempts(tiny, tmp_path, ahead=True, name="odd", how="uneven")
    assert [[one.fault for one in group] for group in made] == [[None, "unlike", "unlike"]] * 2
    assert all(turn.reward is None for group in made for one in group[1:] for turn in one.turns)


@pytest.mark.parametrize("ahead", [True, False])
def test_an_attempt_whose_world_never_begins_has_no_turn(tiny: Tiny, tmp_path: Path, ahead: bool) -> None:
    made, _ = attempts(tiny, tmp_path, ahead=ahead, name="odd", how="begins once")
    assert [[(one.fault, len(one.turns)) for one in group] for group in made] == [[("raised:OSError", 0)] * 3] * 2


SAME = ((0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 1, 2))
"""What each of four attempts says at each turn: one at first, two that go on apart, three."""


@pytest.mark.parametrize("crash_share", [0.0, 0.5])
def test_attempts_that_do_the_same_are_one_until_they_part(tiny: Tiny, tmp_path: Path, crash_share: float) -> None:
    def same(place: int, k: int, turn: int) -> int:
        return rng.key(9, place, SAME[turn][k], turn)

    def run(*, ahead: bool) -> tuple[list[list[Trajectory]], EnvPool]:
        made, table = attempts(
            tiny,
            tmp_path,
            ahead=ahead,
            n=4,
            rounds=1,
            seed_of=lambda place, k, turn: rng.key(9, place, SAME[turn][k], turn),
            crash_share=crash_share,
        )
        return made, table.pool

    expected, apart = run(ahead=False)
    made, together = run(ahead=True)
    assert made == expected
    said = [[tuple(turn.action for turn in one.turns) for one in group] for group in made]
    assert all(len(set(group)) == 3 and group[0] == group[1] for group in said), "the third and fourth part at the last turn"
    assert (together.ahead.worlds, apart.ahead.worlds) == (3, 4)
    if not crash_share:
        assert apart.begun() == 8


def test_as_many_worlds_of_a_group_begin_ahead_as_the_last_ones_needed() -> None:
    with open_pool("toy_desk", settings=LIMITS) as pool:
        groups = [pool.ahead.take(task, seed, 3) for task, seed in TASKS]
        pool.ahead.firsts(groups)
        assert comes_true(lambda: pool.begun() == 6), "nothing is known yet"
        pool.ahead.learn([[groups[0][0]] * 3, [groups[1][0], groups[1][0], groups[1][2]]])
        for episode in (one for group in groups for one in group):
            episode.close()
        pool.ahead.foresee([(task, seed + 1, 3) for task, seed in TASKS])
        groups = [pool.ahead.take(task, seed + 1, 3) for task, seed in TASKS]
        pool.ahead.firsts(groups)
        assert comes_true(lambda: pool.begun() == 10), "two of each group: one and two worlds were needed"
        assert [[one.began for one in group] for group in groups] == [[True, True, False]] * 2


def test_a_fault_in_a_world_that_several_are_in_is_that_of_one(tiny: Tiny, tmp_path: Path) -> None:
    def same(place: int, k: int, turn: int) -> int:
        return rng.key(9, place, turn)

    made, _ = attempts(tiny, tmp_path, ahead=True, name="odd", n=3, rounds=1, seed_of=same, how="fails once")
    assert [[one.fault for one in group] for group in made] == [["raised:OSError", None, None]] * 2
    assert all(len(one.turns) == 3 for group in made for one in group[1:])


# ---- lanes ----------------------------------------------------------------------------------------------------------


def test_what_somebody_waits_for_goes_before_what_can_wait() -> None:
    done: list[str] = []
    go, full = threading.Event(), threading.Event()
    lane = Lane("test", lambda: not full.is_set())
    held = lane.submit(go.wait)
    for name in ("a", "b"):
        lane.later(lambda name=name: done.append(name))
    asked = [lane.submit(done.append, name) for name in ("1", "2")]
    go.set()
    held.result()
    for one in asked:
        one.result()
    assert comes_true(lambda: done == ["1", "2", "a", "b"])
    full.set()
    lane.later(lambda: done.append("c"))
    lane.submit(done.append, "3").result()
    assert done[4:] == ["3"], "there is no room for it"
    full.clear()
    lane.submit(done.append, "4").result()
    assert comes_true(lambda: done[4:] == ["3", "4", "c"])
    full.set()
    lane.later(lambda: done.append("d"))
    lane.close()
    assert done[4:] == ["3", "4", "c"]
    with pytest.raises(RuntimeError):
        lane.submit(done.append, "5")


# ---- what comes next ------------------------------------------------------------------------------------------------


def groups(step: int, names: Sequence[str]) -> list[Coming]:
    return [Coming(place=place, sample=sample(id=f"{name}{step}"), attempts=2) for place, name in enumerate(names)]


def test_the_rest_of_the_step_and_then_the_next_one_come() -> None:
    guessed = {1: groups(1, "xyz"), 2: groups(2, "xyz"), 3: groups(3, "wrong"), 4: groups(4, "xyz")}
    now = 0

    def plan(step: int) -> None:
        nonlocal now
        now = step
        foresight.plan(step, groups(step, "xyz"))

    def names(step: int, place: int, most: int = 9) -> list[tuple[int, str]]:
        return [(at, one.sample.id) for at, one in foresight.behind(step, place, most)]

    foresight = Foresight(lambda: guessed[now + 1], steps=5)
    plan(0)
    assert names(0, 0) == [(0, "y0"), (0, "z0"), (1, "x1"), (1, "y1"), (1, "z1")]
    assert names(0, 1, most=2) == [(0, "z0"), (1, "x1")]
    plan(1)
    plan(2)
    assert names(1, 2) == [(2, "x2"), (2, "y2"), (2, "z2")], "it is planned by now, ahead of its update"
    assert names(2, 2) == [(3, one.sample.id) for one in guessed[3]]
    plan(3)
    assert names(3, 1) == [(3, "z3")], "the guess of this step was wrong, so the next one is not believed"
    plan(4)
    assert names(4, 2) == [], "there is no step behind it"


def test_a_right_guess_is_believed_again() -> None:
    guesses = iter([groups(1, "ab"), groups(2, "cd"), groups(3, "cd"), groups(4, "cd")])
    foresight = Foresight(lambda: next(guesses), steps=9)
    found: list[int] = []
    for step in range(4):
        foresight.plan(step, groups(step, "cd"))
        found.append(len(foresight.behind(step, 1, 9)))
    assert found == [2, 0, 2, 2]
