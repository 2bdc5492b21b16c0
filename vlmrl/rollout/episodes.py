"""Episodes with a rollout engine: every attempt that waits for an answer gets one, then every environment acts, until all are over.

The reference for what follows: each turn's prompt is read anew, so nothing is kept between turns but token ids. Prompts are built by the
policy of history from what was sampled, so that each turn is a row whose prompt is exactly what the sampler saw. Seeds of answers belong
to (attempt, turn): neither who else plays nor the order in which attempts end changes what is sampled, up to the last bits of batched
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmrl.answers.tags import FREE
from vlmrl.data.conversation import Conversation
from vlmrl.data.history import History
from vlmrl.envs.play import keep
from vlmrl.envs.pool import EnvPool, Episode, Reply
from vlmrl.envs.prompts import Handles, next_prompt
from vlmrl.envs.screens import ScreenFolder
from vlmrl.envs.trajectory import Seen, Trajectory, Turn, spoilt
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

Generate = Callable[[Sequence[Request], GenerationSettings], Sequence[Sequence[Rollout]]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What the episodes of a run share."""

    pool: EnvPool
    generate: Generate
    settings: GenerationSettings
    conversation: Conversation
    handle: Handles
    screens: ScreenFolder
    history: History
    turns: int
    """Most answers of an episode."""
    action: Callable[[str], str] = field(default=lambda text: text)
    """What the environment is given of an answer's text."""
    answer_format: str = FREE


@dataclass
class _Attempt:
    """An attempt that is played."""

    task: Mapping[str, Any]
    seed: int
    k: int
    episode: Episode
    reply: Reply
    done: list[Turn] = field(default_factory=list[Turn])
    seen: Seen | None = None

    def trajectory(self, identity: Mapping[str, str]) -> Trajectory:
        fault = self.reply.fault
        turns = tuple(self.done) if fault is None else spoilt(self.done)
        return Trajectory(task=dict(self.task), seed=self.seed, k=self.k, turns=turns, fault=fault, identity=dict(identity))


def run_attempts(
    table: Table, tasks: Sequence[tuple[Mapping[str, Any], int]], attempts: int, seed_of: Callable[[int, int, int], int]
) -> list[list[Trajectory]]:
    """Attempts at each (task, environment's seed). `seed_of(place of the task, k, turn)` seeds an answer.

    Raises:
        RowError, MediaError: an observation cannot be encoded.
    """
    opened = [(task, seed, k, table.pool.episode(task, seed)) for task, seed in tasks for k in range(attempts)]
    try:
        firsts = [episode.reset() for *_, episode in opened]
        every = [_Attempt(task, seed, k, episode, first.result()) for (task, seed, k, episode), first in zip(opened, firsts, strict=True)]
        places = [n // attempts for n in range(len(every))]
        for turn in range(table.turns):
            waiting = [n for n, one in enumerate(every) if one.reply.observation is not None]
            if not waiting:
                break
            prompts = [_prompt(table, every[n]) for n in waiting]
            requests = [
                Request(prompt=prompt, seeds=(seed_of(places[n], every[n].k, turn),), ks=(every[n].k,))
                for n, prompt in zip(waiting, prompts, strict=True)
            ]
            answers = [rollouts[0] for rollouts in table.generate(requests, table.settings)]
            steps = [every[n].episode.step(table.action(answer.text)) for n, answer in zip(waiting, answers, strict=True)]
            for n, answer, step in zip(waiting, answers, steps, strict=True):
                _record(every[n], answer, step.result(), last=turn + 1 == table.turns)
    finally:
        for *_, episode in opened:
            episode.close()
    made = [one.trajectory(table.pool.identity) for one in every]
    return [made[n : n + attempts] for n in range(0, len(made), attempts)]


def _prompt(table: Table, one: _Attempt) -> Prompt:
    assert one.reply.observation is not None
    one.seen = keep(one.reply.observation, table.screens)
    so_far = Trajectory(task=one.task, seed=one.seed, k=one.k, turns=tuple(one.done))
    return next_prompt(so_far, one.seen, table.history, table.conversation, table.handle, answer_format=table.answer_format)


def _record(one: _Attempt, answer: Rollout, came: Reply, *, last: bool) -> None:
    assert one.seen is not None
    outcome = "turns" if last and not came.done else came.outcome
    one.reply = came
    one.done.append(
        Turn(
            seen=one.seen,
            action=answer.text,
            ids=answer.ids,
            logprobs=answer.logprobs,
            finish=answer.finish,
            reward=came.reward,
            outcome=outcome,  # pyright: ignore[reportArgumentType]
        )
    )
