"""Collect a step's episodes: attempts at every task of the plan are played, and each turn becomes a row with what its sampler saw.

A group is a task with one seed of the environment; its rollouts are the turns of all whole attempts, each with a prompt of its own
(`types.TurnRollout`). Prompts are made from the record of the trajectory by the policy of history, by the same code for an attempt that
was just played and for one from the journal: sampled ids stand as they are, observations are segments that nothing trains.

An attempt with a fault gives no rows at all, so no reward, no statistic and no gradient: it is counted with its reason and stays in the
journal. Of faults that become too many (`FaultWatch`) the run ends with exit code 69, before they are journalled: the same command plays
these episodes again.

Episodes of a generation batch are played together. A batch that the journal does not hold whole is played again from the first reset,
with the same seeds and in the same company.

Worlds of the episodes behind a batch begin while its rows are scored and learnt from (`agents.foresight`, `agents.ahead`).

Steps may be played ahead of their updates (`train.pipeline`), also in a thread beside an update. Counts of faults are therefore kept by
step, and what a step is judged with is taken when it is planned: a function of the steps before it, whatever runs at the same time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from vlmrl.errors import CheckpointError, RemoteError
from vlmrl.extras.agents.episodes import EnvSetup, run_attempts
from vlmrl.extras.agents.foresight import Coming, Foresight
from vlmrl.extras.agents.prompts import chains, rows
from vlmrl.extras.agents.rows import TaskOf, plain_task
from vlmrl.extras.agents.trajectory import (
    Trajectory,
    environment_seed,
    trajectory_from_json,
    trajectory_to_json,
    turn_columns,
    turn_seed,
)
from vlmrl.rollout.collect import Collection, Collector, GenerationBatch, PendingGroup, RolloutBatch, Scoring
from vlmrl.rollout.journal import Journal, scores_from_json
from vlmrl.types import Group, Prompt, Sample, ScoredGroup, TurnRollout

WINDOW = 50
"""Steps over which the share of faults is watched."""
NOTE = "environment/"
COUNT = f"{NOTE}told/"
"""Attempts whose world said a number by a name; the sum of what they said last stands under `environment/info/`."""


class FaultWatch:
    """Faults among the episodes of the last steps, and what the environment says of itself. Part of the run's state."""

    def __init__(self, max_share: float):
        self.max_share = max_share
        self.window: list[list[int]] = []
        """[faults, episodes] of each finished step, over all ranks."""
        self.identity: dict[str, str] = {}
        self._open: dict[int, dict[str, tuple[int, int]]] = {}
        """Step that is not finished -> group -> (faults, episodes), of this rank."""
        self._before: dict[int, tuple[int, int, int]] = {}
        """Step that is not finished -> (faults, episodes, steps) of those in front of it."""

    def begin(self, step: int) -> None:
        """A step is planned, and all before it are played."""
        before = [(sum(f for f, _ in own.values()), sum(n for _, n in own.values())) for at, own in self._open.items() if at < step]
        done = [*((f, n) for f, n in self.window), *before][-(WINDOW - 1) :]
        self._before[step] = sum(f for f, _ in done), sum(n for _, n in done), len(done)

    def count(self, step: int, group: str, played: Sequence[Trajectory]) -> None:
        """Count the episodes of a group of a step, of this rank."""
        self._open.setdefault(step, {})[group] = sum(one.fault is not None for one in played), len(played)

    def judge(self, step: int, played: Sequence[Trajectory], detail: str, *, last: bool) -> None:
        """Called with a batch of fresh episodes of a step, once they are counted; `last` of its step.

        Raises:
            RemoteError: no episode of the step is whole; or the faults that are allowed in a full window are spent (while the window
                fills, of as many episodes as 50 such steps would have). So a bad start does not stop a run, and a world that is down does.
        """
        now, total_now = (sum(counts[i] for counts in self._open[step].values()) for i in (0, 1))
        failed, total, steps = (a + b for a, b in zip(self._before[step], (now, total_now, 1), strict=True))
        if last and played and now == total_now:
            said = f"all of {now} episodes of the step"
        elif failed > self.max_share * total * WINDOW / steps:
            said = f"{failed} of {total} episodes of the last {steps} steps"
        else:
            return
        reasons = Counter(one.fault for one in played if one.fault is not None)
        listed = ", ".join(f"{reason} {n}" for reason, n in sorted(reasons.items()))
        raise RemoteError(
            f"environment: {said} ended in a fault (last: {listed or 'none'}); environment.max_faults is {self.max_share}{detail}; nothing "
            "is lost: the same command plays the last of them again"
        )

    def same(self, identity: Mapping[str, str]) -> None:
        """Hold what an environment says of itself against what it said before.

        Raises:
            CheckpointError: it is another.
        """
        before = self.identity
        if before and identity and before != dict(identity):
            was, now = (
                {name: value for name, value in one.items() if value != other.get(name)}
                for one, other in ((before, identity), (identity, before))
            )
            raise CheckpointError(f"environment: it was {was} when the run began, and is {now} now; put it back")
        self.identity = before or dict(identity)

    def finish(self, step: int, faults: int, episodes: int) -> None:
        """End a step with the counts of all ranks."""
        self.window = [*self.window, [faults, episodes]][-(WINDOW - 1) :]
        self._open.pop(step, None)
        self._before.pop(step, None)

    def state_dict(self) -> dict[str, Any]:
        return {"window": self.window, "identity": self.identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != {"window", "identity"}:
            raise CheckpointError(f"state of an environment's faults has keys {sorted(state)}, expected ['identity', 'window']")
        self.window, self.identity = list(state["window"]), dict(state["identity"])


@dataclass(kw_only=True)
class EpisodeGroup(PendingGroup):
    """A task whose attempts are played."""

    played: Sequence[Trajectory]
    """All attempts, those with a fault too."""
    version: int
    """Of the policy that acted."""


@dataclass(frozen=True, kw_only=True)
class EpisodeCollector(Collector):
    """A collector whose groups are episodes."""

    table: EnvSetup
    watch: FaultWatch
    task_of: TaskOf = plain_task
    """What the environment is given of a row."""
    foresight: Foresight = field(default_factory=Foresight)
    """What is played next."""
    played: dict[int, dict[str, Sequence[Trajectory]]] = field(default_factory=dict[int, dict[str, Sequence[Trajectory]]])
    """Step -> group -> all attempts, for those who make prompts again (`agents.again`); up to the end of the step."""

    def begin(self, prompts: Sequence[tuple[int, Prompt]], *, step: int, journal: Journal, **plan: Any) -> Collection:
        """What `Collector.begin` does."""
        self.watch.begin(step)
        sizes = plan.get("num_generations") or [self.num_generations] * len(prompts)
        groups = zip(prompts, sizes, strict=True)
        self.foresight.plan(step, [Coming(place=place, sample=prompt.sample, attempts=n) for (place, prompt), n in groups])
        return super().begin(prompts, step=step, journal=journal, **plan)

    def measured(self, notes: Mapping[str, float], *, step: int) -> Mapping[str, float]:
        """Rates of the step's episodes. Faults are in no denominator but their own."""
        count = {name: notes.get(f"{NOTE}{name}", 0.0) for name in ("attempts", "faults", "successes", "turns", "invalid", "met_again")}
        self.watch.finish(step, int(count["faults"]), int(count["attempts"]))
        for done in [at for at in list(self.played) if at < step]:
            del self.played[done]
        whole = max(1.0, count["attempts"] - count["faults"])
        turns = max(1.0, count["turns"])
        rates = {
            "success_rate": count["successes"] / whole,
            "mean_turns": count["turns"] / whole,
            "invalid_rate": count["invalid"] / turns,
            "shared_states": count["met_again"] / turns,
            "fault_rate": count["faults"] / max(1.0, count["attempts"]),
        }
        told = {name.removeprefix(COUNT): n for name, n in notes.items() if name.startswith(COUNT)}
        rates |= {f"info/{name}": notes[f"{NOTE}info/{name}"] / n for name, n in told.items()}
        kept = {name: value for name, value in notes.items() if not name.startswith(COUNT)}
        return {**kept, **{f"{NOTE}{name}": value for name, value in rates.items()}}

    def _generate(self, one: Scoring, thread: ThreadPoolExecutor, out: RolloutBatch) -> None:
        """Play every attempt of a batch; a group is scored once all of them are over."""
        batch = one.batch
        tasks = [self._begins(batch.step, place, prompt.sample) for place, prompt in batch.prompts]
        began = time.perf_counter()
        version = self.engine.version
        every = run_attempts(
            self.table, tasks, batch.num_generations, lambda number, k, turn: turn_seed(*self._where(batch, number), k, turn)
        )
        out.rollout_seconds += time.perf_counter() - began
        self._foresee(batch)
        fresh = [trajectory for played in every for trajectory in played]
        self.watch.same(self.table.pool.identity)
        for group, played in zip(batch.ids, every, strict=True):
            self.watch.count(batch.step, group, played)
        said = self.table.pool.said
        detail = f"; retried so far: {sum(self.table.pool.retried.values())}" + (f"; the last said: {said}" if said else "")
        self.watch.judge(batch.step, fresh, detail, last=batch.last)
        for number, played in enumerate(every):
            one.pending[number] = self._played(batch, number, played, version)
            one.futures.append(thread.submit(self._score_group, one.pending[number]))

    def _foresee(self, batch: GenerationBatch) -> None:
        """Let the worlds of the next batch begin."""
        last = max((place for place, _ in batch.prompts), default=-1)
        coming = self.foresight.behind(batch.step, last, self.generation_batch_size)
        self.table.pool.ahead.foresee([(*self._begins(step, one.place, one.sample), one.attempts) for step, one in coming])

    def _begins(self, step: int, place: int, sample: Sample) -> tuple[dict[str, Any], int]:
        """Task and environment's seed of a group."""
        return self.task_of(sample), environment_seed(self.seed, self.stage, step, place, sample.id)

    def _where(self, batch: GenerationBatch, number: int) -> tuple[int, str, int, int, str]:
        """The coordinates of a group's seeds."""
        place, prompt = batch.prompts[number]
        return self.seed, self.stage, batch.step, place, prompt.sample.id

    def _played(self, batch: GenerationBatch, number: int, played: Sequence[Trajectory], version: int) -> EpisodeGroup:
        (place, prompt), notes = batch.prompts[number], notes_of(played)
        self.played.setdefault(batch.step, {})[batch.ids[number]] = played
        group = Group(id=batch.ids[number], prompt=prompt, rollouts=tuple(turn_rollouts(self.table, played, version)))
        return EpisodeGroup(place=place, step=batch.step, group=group, notes=notes, played=played, version=version)

    def _sampled(self, batch: GenerationBatch, number: int) -> EpisodeGroup:
        record = batch.known[batch.ids[number]]
        if "trajectories" not in record:
            raise CheckpointError(f"{batch.journal.path}: group {batch.ids[number]} was sampled without an environment; delete this file")
        played = [trajectory_from_json(value) for value in record["trajectories"]]
        for trajectory in played:
            self.watch.same(trajectory.identity)
        self.watch.count(batch.step, batch.ids[number], played)
        return self._played(batch, number, played, record["policy_version"])

    def _replayed(self, batch: GenerationBatch, number: int) -> EpisodeGroup:
        one = self._sampled(batch, number)
        one.scored = ScoredGroup(group=one.group, scores=scores_from_json(batch.known[batch.ids[number]]["scores"]))
        return one

    def _record(self, one: PendingGroup) -> dict[str, Any]:
        """The trajectories stand in place of the rollouts, which are made from them."""
        assert isinstance(one, EpisodeGroup)
        trajectories = [trajectory_to_json(trajectory) for trajectory in one.played]
        return {**super()._record(one), "rollouts": [], "trajectories": trajectories, "policy_version": one.version}


def turn_rollouts(table: EnvSetup, played: Sequence[Trajectory], version: int) -> list[TurnRollout]:
    """The turns of the whole attempts at a task, attempt after attempt. Turns that saw the same share their prompt.

    Raises:
        RowError, MediaError: what encoding raises.
    """
    out: list[TurnRollout] = []
    shared: dict[object, Prompt] = {}
    for one in (trajectory for trajectory in played if trajectory.fault is None):
        made = rows(chains(one, table.history, table.conversation, table.handle, answer_format=table.answer_format))
        for number, ((prompt, ids), turn) in enumerate(zip(made, one.turns, strict=True)):
            assert turn.reward is not None
            out.append(
                TurnRollout(
                    k=len(out),
                    ids=ids,
                    logprobs=turn.logprobs,
                    routes=turn.routes,
                    text=turn.action,
                    finish=turn.finish,
                    policy_version=version,
                    attempt=one.k,
                    turn=number,
                    state=turn.seen.state,
                    reward=turn.reward,
                    prompt=shared.setdefault((prompt.ids, prompt.media), prompt),
                )
            )
    return out


def notes_of(played: Sequence[Trajectory]) -> Counter[str]:
    """Counts of a group's attempts. Turns are those of whole attempts."""
    whole = [one for one in played if one.fault is None]
    turns = [turn for one in whole for turn in one.turns]
    notes: Counter[str] = Counter(
        {
            "attempts": len(played),
            "successes": sum(one.outcome == "success" for one in whole),
            "turns": len(turns),
            "invalid": sum(turn.outcome == "invalid" for turn in turns),
            "met_again": round(turn_columns(whole).shared() * len(turns)),
            "faults": len(played) - len(whole),
        }
    )
    notes.update(f"fault/{one.fault}" for one in played if one.fault is not None)
    notes.update(f"limit/{one.outcome}" for one in whole if one.outcome in ("cut", "turns", "context"))
    for one in whole:
        notes.update({f"told/{name}": 1 for name in one.told})
        for name, value in one.told.items():
            notes[f"info/{name}"] += value  # pyright: ignore[reportArgumentType]
    return Counter({f"{NOTE}{name}": n for name, n in notes.items()})
