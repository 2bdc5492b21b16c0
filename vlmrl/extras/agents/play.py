"""Play episodes with an agent that is no model (random or solving), and keep what was seen: `vlmrl tools env play`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from vlmrl import fs
from vlmrl.errors import ConfigError
from vlmrl.extras.agents.pool import EnvPool, Episode
from vlmrl.extras.agents.protocol import Observation
from vlmrl.extras.agents.reply import Reply
from vlmrl.extras.agents.rows import recorded
from vlmrl.extras.agents.screens import ScreenFolder, state_of
from vlmrl.extras.agents.trajectory import Snapshot, Trajectory, TrajectoryTurn, environment_seed, spoilt, trajectory_to_json
from vlmrl.rng import key

Agent = Literal["random", "solve"]
RECORDS, SCREENS = "trajectories.jsonl", "screens"


def play(pool: EnvPool, task: Mapping[str, Any], seed: int, *, k: int, agent: Agent, turns: int, screens: ScreenFolder) -> Trajectory:
    """One episode of at most so many turns.

    Raises:
        ConfigError: the environment cannot play so.
    """
    episode = pool.episode(task, seed)
    done: list[TrajectoryTurn] = []
    try:
        reply = episode.reset().result()
        optimum = reply.optimum
        while reply.observation is not None and len(done) < turns:
            seen = keep(reply.observation, screens)
            action = _action(episode, agent, key(seed, "play", k, len(done)))
            if action.fault is not None:
                reply = action
                break
            assert action.action is not None
            reply = episode.step(action.action).result()
            outcome = "turns" if not reply.done and len(done) + 1 == turns else reply.outcome
            done.append(
                TrajectoryTurn(seen=seen, action=action.action, reward=reply.reward, outcome=outcome, info=reply.info)  # pyright: ignore[reportArgumentType]
            )
    finally:
        episode.close()
    fault = reply.fault
    kept = tuple(done) if fault is None else spoilt(done)
    return Trajectory(task=recorded(task), seed=seed, k=k, turns=kept, fault=fault, identity=dict(pool.identity), optimum=optimum)


def keep(observation: Observation, screens: ScreenFolder) -> Snapshot:
    """An observation with its screens as files."""
    return Snapshot(text=observation.text, media=tuple(screens.put(data) for data in observation.screens), state=state_of(observation))


def _action(episode: Episode, agent: Agent, n: int) -> Reply:
    reply = (episode.solve() if agent == "solve" else episode.propose(n)).result()
    if reply.fault is None and reply.action is None:
        lacks = "does not know a best action (solve)" if agent == "solve" else "names no actions to try (propose)"
        raise ConfigError(f"the environment {lacks}, so agent '{agent}' cannot play it")
    return reply


def play_many(
    pool: EnvPool,
    tasks: Sequence[Mapping[str, Any]],
    out: Path,
    *,
    episodes: int,
    attempts: int,
    agent: Agent,
    turns: int,
    seed: int,
    after: Callable[[Trajectory], None] | None = None,
) -> list[list[Trajectory]]:
    """Groups of attempts at the tasks in turn; screens in `out/screens`. `after` is called with each attempt at its end."""
    screens = ScreenFolder(out / SCREENS)
    groups: list[list[Trajectory]] = []
    for task, of_episode in seeded(tasks, episodes, seed):
        groups.append([])
        for k in range(attempts):
            groups[-1].append(play(pool, task, of_episode, k=k, agent=agent, turns=turns, screens=screens))
            if after is not None:
                after(groups[-1][-1])
    return groups


def seeded(tasks: Sequence[Mapping[str, Any]], episodes: int, seed: int) -> list[tuple[Mapping[str, Any], int]]:
    """(task, environment's seed) of so many episodes, the tasks in turn."""
    turned = [tasks[n % len(tasks)] for n in range(episodes)]
    return [(task, environment_seed(seed, "play", 0, n, str(task.get("id", n)))) for n, task in enumerate(turned)]


def write_records(out: Path, played: Sequence[Sequence[Trajectory]]) -> None:
    """`out/trajectories.jsonl`: one line per attempt."""
    lines = [json.dumps(trajectory_to_json(one), sort_keys=True) + "\n" for group in played for one in group]
    fs.write_text(out / RECORDS, "".join(lines))
