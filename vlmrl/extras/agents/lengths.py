"""How long the tasks of an environment are, for a curriculum: by the fewest turns that it declares, or by the successes of played attempts.

Both are means over episodes, since a task has other seeds in training, and both become the tag `trajectory.length` of a row
(`sampling.curriculum_gui`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import CheckpointError, ConfigError, VlmrlError
from vlmrl.extras.agents.pool import EnvPool
from vlmrl.extras.agents.rows import ASKS, TURNS
from vlmrl.extras.agents.trajectory import Trajectory, environment_seed, trajectory_from_json

Lengths = dict[str, float | None]
"""Turns by a task's id; None where nothing is known of it."""


def declared_lengths(pool: EnvPool, tasks: Sequence[Mapping[str, Any]], *, episodes: int, seed: int) -> Lengths:
    """The mean, over so many episodes of each task, of the fewest turns that the environment declares.

    Raises:
        VlmrlError: an episode could not begin.
    """
    out: Lengths = {}
    for n, task in enumerate(tasks):
        name = task_id(task, n)
        found: list[int] = []
        for place in range(episodes):
            episode = pool.episode(task, environment_seed(seed, "lengths", 0, place, name))
            try:
                reply = episode.reset().result()
            finally:
                episode.close()
            if reply.fault is not None:
                raise VlmrlError(f"task '{name}': its episode {place} could not begin: {reply.fault}; see vlmrl tools env check")
            if reply.optimum is not None:
                found.append(reply.optimum.turns)
        out[name] = sum(found) / len(found) if found else None
    return out


def played_lengths(played: Iterable[Trajectory]) -> Lengths:
    """The mean number of turns of the successes at each task; None for a task that was tried and never solved. An attempt with a fault
    says nothing."""
    taken: dict[str, list[int]] = {}
    for n, one in enumerate(played):
        if one.fault is None:
            own = taken.setdefault(task_id(one.task, n), [])
            if one.outcome == "success":
                own.append(len(one.turns))
    return {name: sum(turns) / len(turns) if turns else None for name, turns in taken.items()}


def read_played(path: Path) -> list[Trajectory]:
    """The attempts of a file that `vlmrl tools env play` or `vlmrl tools env act` wrote.

    Raises:
        ConfigError: it cannot be read; names the line.
    """
    out: list[Trajectory] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a trajectories.jsonl of vlmrl tools env play or act") from error
    for n, line in enumerate(lines, 1):
        try:
            out.append(trajectory_from_json(json.loads(line)))
        except (CheckpointError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}:{n}: {error}; name a trajectories.jsonl of vlmrl tools env play or act") from error
    return out


def task_rows(
    tasks: Sequence[Mapping[str, Any]], lengths: Lengths, *, unsolved: float | None, times: float | None = None
) -> list[dict[str, Any]]:
    """Rows of a source, in the order of the tasks: id, `environment`, and `trajectory.length` where one is known. `unsolved`: the length of
    a task that was tried and never solved, which is above all others. `times`: a task may take so many times its length in turns.

    Raises:
        ConfigError: two tasks have the same id.
    """
    out: list[dict[str, Any]] = []
    for n, task in enumerate(tasks):
        name = task_id(task, n)
        row: dict[str, Any] = {"id": name, "environment": {key: value for key, value in task.items() if key not in ("id", ASKS)}}
        length = lengths.get(name)
        if times is not None and length is not None:
            row["environment"][TURNS] = math.ceil(round(times * length, 6))  # 1.1 * 10 is 11, whatever the last bit says
        if name in lengths and length is None:
            length = unsolved
        if length is not None:
            row["trajectory"] = {"length": length}
        out.append(row)
    if len({row["id"] for row in out}) < len(out):
        raise ConfigError("two tasks have the same id; a row needs an id of its own")
    return out


def task_id(task: Mapping[str, Any], n: int) -> str:
    """As text; its place where it has none."""
    return str(task.get("id", n))
