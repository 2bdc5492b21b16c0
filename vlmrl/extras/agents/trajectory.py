"""Trajectories: what was seen, done and rewarded, turn by turn, and their record for the journal. A turn is a row of training.

An observation is context: it is never sampled, never trained and never tokenised again. A trajectory with a fault has no rewards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from vlmrl import rng
from vlmrl.errors import CheckpointError
from vlmrl.extras.agents.protocol import Info, Optimum, Outcome
from vlmrl.types import FinishReason, MediaRef, digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """An observation as it is kept: its screens are files of the run's folder, named by their content."""

    text: str
    media: tuple[MediaRef, ...]
    state: str
    """See `agents.screens.state_of`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryTurn:
    """One answer, what it was given to, and what came of it."""

    seen: Snapshot
    """Before the action."""
    action: str
    ids: tuple[int, ...] = ()
    """Exactly what was sampled, end token included; empty where no model acted."""
    logprobs: tuple[float, ...] = ()
    routes: tuple[str, ...] = ()
    """As in `Rollout`."""
    finish: FinishReason = "stop"
    reward: float | None = None
    """Of this step; None where a fault ended the trajectory."""
    outcome: Outcome = ""
    info: Info = field(default_factory=dict[str, float | str])
    """What the world said of this step beside the reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """One attempt at a task."""

    task: Mapping[str, Any]
    seed: int
    """Of the environment: the same for all attempts of a group."""
    k: int
    """Number of the attempt within its group."""
    turns: tuple[TrajectoryTurn, ...]
    fault: str | None = None
    """`reason` of what ended it that was not the policy's doing."""
    identity: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the environment."""
    optimum: Optimum | None = None
    """Of the episode from its first screen, where the environment knows it."""

    def __post_init__(self) -> None:
        unrewarded = [t for t, turn in enumerate(self.turns) if turn.reward is None]
        if (self.fault is not None and len(unrewarded) < len(self.turns)) or (self.fault is None and unrewarded):
            raise ValueError(f"trajectory {self.k}: fault {self.fault}, turns without reward {unrewarded}; a fault takes all rewards away")

    @property
    def total(self) -> float | None:
        """The return: the sum of the rewards; None for a fault."""
        return None if self.fault is not None else sum(turn.reward or 0.0 for turn in self.turns)

    @property
    def outcome(self) -> str:
        """Of the last turn; `fault` where there was one."""
        if self.fault is not None:
            return "fault"
        return self.turns[-1].outcome if self.turns else ""

    @property
    def told(self) -> dict[str, float]:
        """The last number that the world said by each name of `info`; nothing of a fault."""
        if self.fault is not None:
            return {}
        return {name: float(value) for turn in self.turns for name, value in turn.info.items() if not isinstance(value, str)}


def spoilt(turns: Sequence[TrajectoryTurn]) -> tuple[TrajectoryTurn, ...]:
    """The turns before a fault, without their rewards."""
    return tuple(dataclasses.replace(turn, reward=None) for turn in turns)


@dataclass(frozen=True, kw_only=True)
class TurnColumns:
    """The turns of a group as flat lists, one entry per turn: what step credit compares."""

    trajectory: list[int]
    turn: list[int]
    state: list[int]
    """Equal numbers are equal states of the group."""
    action: list[int]
    """Equal numbers are equal actions, as text without spaces at its ends."""
    reward: list[float | None]

    def shared(self) -> float:
        """Share of the turns whose state another attempt met too. Where it is 0, step credit says nothing that the attempt does not."""
        met: dict[int, set[int]] = {}
        for attempt, state in zip(self.trajectory, self.state, strict=True):
            met.setdefault(state, set()).add(attempt)
        return sum(len(met[state]) > 1 for state in self.state) / len(self.state) if self.state else 0.0


def turn_columns(group: Sequence[Trajectory]) -> TurnColumns:
    """The turns of attempts at one task.

    Raises:
        ValueError: the attempts began with different seeds, so that no screen is a baseline for another.
    """
    if len({(digest(one.task), one.seed) for one in group}) > 1:
        raise ValueError("the attempts of a group begin with the same task and seed")
    states: dict[str, int] = {}
    actions: dict[str, int] = {}
    every = [(i, t, turn) for i, one in enumerate(group) for t, turn in enumerate(one.turns)]
    return TurnColumns(
        trajectory=[i for i, _, _ in every],
        turn=[t for _, t, _ in every],
        state=[states.setdefault(turn.seen.state, len(states)) for _, _, turn in every],
        action=[actions.setdefault(turn.action.strip(), len(actions)) for _, _, turn in every],
        reward=[turn.reward for _, _, turn in every],
    )


def environment_seed(seed: int, stage: str, step: int, place: int, sample: str) -> int:
    """The environment's seed of a group. Without the number of the attempt: all attempts begin at the same screen, so that a group's
    mean is a baseline and equal states are equal."""
    return rng.key(seed, "environment", stage, step, place, sample)


def turn_seed(seed: int, stage: str, step: int, place: int, sample: str, k: int, turn: int) -> int:
    """The seed of sampling one answer."""
    return rng.key(seed, "rollout", stage, step, place, sample, k, "turn", turn)


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as JSON values. Screens are named by their hashes; floats are hexadecimal, but for those of `info`. A turn has `info`
    and `routes` only where there are any."""
    best = trajectory.optimum
    known = {} if best is None else {"optimum": {"reward": float(best.reward).hex(), "turns": best.turns}}
    return known | {
        "task": dict(trajectory.task),
        "seed": trajectory.seed,
        "k": trajectory.k,
        "fault": trajectory.fault,
        "identity": dict(trajectory.identity),
        "turns": [
            {
                "seen": {"text": turn.seen.text, "screens": [ref.sha256 for ref in turn.seen.media], "state": turn.seen.state},
                "action": turn.action,
                "ids": list(turn.ids),
                "logprobs": [float(value).hex() for value in turn.logprobs],
                "finish": turn.finish,
                "reward": None if turn.reward is None else float(turn.reward).hex(),
                "outcome": turn.outcome,
                **({"info": dict(turn.info)} if turn.info else {}),
                **({"routes": list(turn.routes)} if turn.routes else {}),
            }
            for turn in trajectory.turns
        ],
    }


def trajectory_from_json(value: Mapping[str, Any]) -> Trajectory:
    """The trajectory that `trajectory_to_json` was given, bit for bit.

    Raises:
        CheckpointError: keys are missing or unknown.
    """
    best = value.get("optimum")
    rest = {name: one for name, one in value.items() if name != "optimum"}
    _strict(rest, {one.name for one in fields(Trajectory)} - {"optimum"}, "trajectory")
    if best is not None:
        _strict(best, {"reward", "turns"}, "optimum")
    optimum = None if best is None else Optimum(reward=float.fromhex(best["reward"]), turns=best["turns"])
    return Trajectory(**{**rest, "turns": tuple(_turn(turn) for turn in value["turns"]), "optimum": optimum})


def _turn(value: Mapping[str, Any]) -> TrajectoryTurn:
    value = {"info": {}, "routes": (), **value}
    _strict(value, {one.name for one in fields(TrajectoryTurn)}, "turn")
    _strict(value["seen"], {"text", "screens", "state"}, "observation")
    seen = value["seen"]
    media = tuple(MediaRef(kind="image", path=f"{name}.png", sha256=name) for name in seen["screens"])
    return TrajectoryTurn(
        **{
            **value,
            "seen": Snapshot(text=seen["text"], media=media, state=seen["state"]),
            "ids": tuple(value["ids"]),
            "routes": tuple(value["routes"]),
            "logprobs": tuple(float.fromhex(one) for one in value["logprobs"]),
            "reward": None if value["reward"] is None else float.fromhex(value["reward"]),
        }
    )


def _strict(value: Mapping[str, Any], expected: set[str], what: str) -> None:
    if set(value) != expected:
        missing, unknown = sorted(expected - set(value)), sorted(set(value) - expected)
        raise CheckpointError(f"record of a {what}: missing {missing}, unknown {unknown}; it was written by another version")
