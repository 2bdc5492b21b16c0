"""What an environment must keep, tried out: the same screens for the same seed, its declared optimum, its faults: `vlmrl tools env check`.

Episodes with proposed actions are played in one worker and again in another, action by action. What differs is named with task, seed
and turn. Nothing here knows a particular environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlmrl.extras.agents.pool import EnvPool, Episode
from vlmrl.extras.agents.protocol import Observation
from vlmrl.extras.agents.reply import Reply
from vlmrl.extras.toy.picture import same_pixels
from vlmrl.rng import key

NONSENSE = "\x00 no action"


@dataclass
class CheckItem:
    """One thing that was looked at."""

    what: str
    looked: int = 0
    wrong: list[str] = field(default_factory=list[str])
    note: str = ""

    @property
    def ok(self) -> bool:
        return not self.wrong

    def line(self) -> str:
        """As it is told."""
        if not self.looked:
            return f"{self.what}: nothing to look at"
        told = f"{len(self.wrong)} of {self.looked} wrong: {'; '.join(self.wrong[:3])}" if self.wrong else f"{self.looked} of {self.looked}"
        return f"{self.what}: {told}{f' ({self.note})' if self.note else ''}"


@dataclass
class Checked:
    """What was found, and the times in milliseconds."""

    found: dict[str, CheckItem]
    resets: list[float] = field(default_factory=list[float])
    steps: list[float] = field(default_factory=list[float])

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.found.values())

    def lines(self) -> list[str]:
        out = [f"{'ok   ' if one.ok else 'WRONG'} {one.line()}" for one in self.found.values()]
        for name, times in (("reset", self.resets), ("step", self.steps)):
            if times:
                median, most = np.percentile(times, (50, 95))
                out.append(f"      time of a {name}: median {median:.1f} ms, 95% {most:.1f} ms (n {len(times)})")
        return out


def check(
    pool: EnvPool,
    tasks: Sequence[Mapping[str, Any]],
    *,
    episodes: int = 20,
    turns: int = 20,
    seed: int = 0,
    begins_alike: bool = False,
) -> Checked:
    """Look at an environment. The pool has at least two workers, and is used by nobody else. `begins_alike`: the environment may begin with
    the same screen for every seed, so that is noted and not wrong."""
    names = {
        "determinism": "same seed and actions, same observations in two processes",
        "reset": "a used environment begins as a fresh one",
        "seed": "another seed, another beginning",
        "optimum": "the declared optimum is reached, and never passed",
        "invalid": "an action that cannot be read is no fault",
        "faults": "episodes without a fault",
        "recovery": "an episode whose process is killed goes on as it was",
    }
    done = Checked(found={name: CheckItem(what) for name, what in names.items()})
    first: dict[int, Observation | None] = {}
    for n in range(episodes):
        task, of_episode = tasks[n % len(tasks)], key(seed, "environment", "check", n)
        replies, actions = _explore(pool, task, of_episode, turns, done)
        first[n] = replies[0].observation
        where = f"task {dict(task)}, seed {of_episode}"
        _count(done, "faults", where, next((_fault(r) for r in replies if r.fault is not None), None))
        if replies[-1].fault is None:
            _count(done, "determinism", where, _again(pool, task, of_episode, replies, actions))
        if n < len(tasks):
            _optimum(pool, task, of_episode, turns, sum(reply.reward or 0.0 for reply in replies), done)
    again = [n for n in range(len(tasks), episodes) if "seed" not in tasks[n % len(tasks)]]  # a task that states its seed begins alike
    same = [n for n in again if first[n] is not None and first[n] == first[n % len(tasks)]]
    compared = len(again)
    done.found["seed"].looked = compared
    if compared and len(same) == compared and not begins_alike:
        done.found["seed"].wrong.append("all seeds begin alike; where that is meant, register it with begins_alike=True")
    elif compared and len(same) == compared:
        done.found["seed"].note = "all begin alike, as they may here"
    elif same:
        done.found["seed"].note = f"{len(same)} begin alike"
    _recovery(pool, tasks[0], key(seed, "environment", "check", "kill"), turns, done)
    return done


def _fault(reply: Reply) -> str:
    """Reason of a fault and the line that says what failed."""
    return f"fault {reply.fault}" + (f" ({reply.told})" if reply.told else "")


def _count(done: Checked, what: str, where: str, problem: str | None) -> None:
    found = done.found[what]
    found.looked += 1
    if problem is not None:
        found.wrong.append(f"{where}: {problem}")


def _explore(pool: EnvPool, task: Mapping[str, Any], seed: int, turns: int, done: Checked) -> tuple[list[Reply], list[str]]:
    """An episode with proposed actions in worker 0, one of them not readable; then a second reset of the same environment."""
    episode = pool.episode(task, seed, worker=0)
    actions: list[str] = []
    episode.open().result()  # starting a process is no part of a reset
    started = time.perf_counter()
    replies = [episode.reset().result()]
    done.resets.append(1000 * (time.perf_counter() - started))
    while not replies[-1].done and len(actions) < turns:
        proposed = episode.propose(key(seed, "check", len(actions))).result()
        unreadable = len(actions) == 1 or proposed.action is None
        actions.append(NONSENSE if unreadable else str(proposed.action))
        started = time.perf_counter()
        replies.append(episode.step(actions[-1]).result())
        done.steps.append(1000 * (time.perf_counter() - started))
        if unreadable:
            _count(done, "invalid", f"seed {seed}", replies[-1].fault)
    if replies[-1].fault is None:
        _count(done, "reset", f"task {dict(task)}, seed {seed}", difference(replies[0], episode.reset().result()))
    episode.close()
    return replies, actions


def _again(pool: EnvPool, task: Mapping[str, Any], seed: int, replies: Sequence[Reply], actions: Sequence[str]) -> str | None:
    """The same episode in worker 1; the first difference."""
    episode = pool.episode(task, seed, worker=1)
    try:
        for turn, before in enumerate(replies):
            now = (episode.reset() if turn == 0 else episode.step(actions[turn - 1])).result()
            different = difference(before, now)
            if different is not None:
                return f"turn {turn}: {different}"
    finally:
        episode.close()
    return None


def difference(a: Reply, b: Reply) -> str | None:
    """What two replies differ in; None where they are the same."""
    if a.fault != b.fault:
        return f"fault {a.fault} and {b.fault}"
    for name in ("reward", "outcome", "optimum", "info"):
        if getattr(a, name) != getattr(b, name):
            return f"{name} {getattr(a, name)} and {getattr(b, name)}"
    one, other = a.observation, b.observation
    if one == other:
        return None
    if one is None or other is None:
        return "one is over, the other is not"
    if one.text != other.text or one.state != other.state:
        return f"text or state: {one.text!r:.80} {one.state!r:.40} and {other.text!r:.80} {other.state!r:.40}"
    if len(one.screens) == len(other.screens) and all(same_pixels(x, y) for x, y in zip(one.screens, other.screens, strict=True)):
        return "same pixels in other files: write pictures without times and other metadata"
    return "pixels"


def _optimum(pool: EnvPool, task: Mapping[str, Any], seed: int, turns: int, explored: float, done: Checked) -> None:
    """Follow the declared solution. `explored`: the return of the same episode with other actions."""
    episode = pool.episode(task, seed)
    try:
        reply = episode.reset().result()
        best = reply.optimum
        if best is None:
            return
        total, taken = 0.0, 0
        while not reply.done and taken < max(turns, best.turns):
            action = episode.solve().result().action
            reply = episode.step(NONSENSE if action is None else action).result()
            total, taken = total + (reply.reward or 0.0), taken + 1
        problem = None
        if reply.fault is not None:
            problem = _fault(reply)
        elif abs(total - best.reward) > 1e-9 or taken != best.turns:
            problem = f"declared {best.reward:g} in {best.turns} turns, reached {total:g} in {taken}"
        elif explored > best.reward + 1e-9:
            problem = f"declared {best.reward:g}, and {explored:g} was reached by other actions"
        _count(done, "optimum", f"task {dict(task)}", problem)
    finally:
        episode.close()


def _recovery(pool: EnvPool, task: Mapping[str, Any], seed: int, turns: int, done: Checked) -> None:
    """Kill the process in the middle of an episode."""
    whole, cut = (pool.episode(task, seed, worker=worker) for worker in (0, 1))
    problem = difference(whole.reset().result(), cut.reset().result())
    for turn in range(min(turns, 4)):
        action = whole.propose(key(seed, "check", turn)).result().action or NONSENSE
        if turn == 1:
            _kill(cut)
        a, b = whole.step(action).result(), cut.step(action).result()
        problem = problem or difference(a, b)
        if a.done or b.done:
            break
    _count(done, "recovery", f"task {dict(task)}, seed {seed}", problem)
    whole.close()
    cut.close()


def _kill(episode: Episode) -> None:
    pid = episode.pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
