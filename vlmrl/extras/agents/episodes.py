"""Episodes with a rollout engine: every attempt that waits for an answer gets one, then every environment acts, until all are over.

Prompts are built by the policy of history from what was sampled, so that each turn is a row whose prompt is exactly what the sampler saw.
Attempts at a task that wait with equal prompts are one request, which is read once. Seeds of answers belong to (attempt, turn): neither
who else plays nor the order in which attempts end changes what is sampled, up to the last bits of batched kernels.

The attempts that are played together are one `protocols.MultiTurnSession`: where a prompt begins with the turn before it, an engine may
keep what it has read of it. `anew` is the reference: it reads every prompt whole. Nothing is kept of an attempt that is over.

With forks (`agents.forks`) the attempts that have not parted yet are asked once and all act on the answer.

A prompt that grows beyond `EnvSetup.longest` ends its attempt with the outcome `context`: a limit, and no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vlmrl import faults
from vlmrl.answers.tags import FREE, parse
from vlmrl.data.encode import Encoder, Processor
from vlmrl.errors import RowError
from vlmrl.extras.agents.ahead import Spent
from vlmrl.extras.agents.conversation import Conversation
from vlmrl.extras.agents.forks import NONE, Forks
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.kept import session_of
from vlmrl.extras.agents.play import keep
from vlmrl.extras.agents.pool import EnvPool, Episode
from vlmrl.extras.agents.prompts import Handles, next_prompt
from vlmrl.extras.agents.protocol import Optimum
from vlmrl.extras.agents.reply import Reply
from vlmrl.extras.agents.rows import recorded, turns_of
from vlmrl.extras.agents.screens import ScreenFolder
from vlmrl.extras.agents.trajectory import Snapshot, Trajectory, TrajectoryTurn, spoilt
from vlmrl.media.store import MediaStore
from vlmrl.protocols import MultiTurnSession, RolloutEngine
from vlmrl.rollout.engine_hf import HFEngine
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

Generate = Callable[[Sequence[Request], GenerationSettings], Sequence[Sequence[Rollout]]]
Talk = Callable[[], AbstractContextManager[MultiTurnSession]]
"""Opens a session."""


@dataclass(frozen=True)
class Anew:
    """A session that keeps nothing."""

    answer: Generate

    def generate(self, requests: Sequence[Request], settings: GenerationSettings) -> Sequence[Sequence[Rollout]]:
        """Every prompt is read whole."""
        return self.answer(requests, settings)

    def forget(self, conversations: Iterable[int]) -> None:
        """There is nothing to free."""


def anew(generate: Generate) -> Talk:
    """Sessions in which every turn's prompt is read whole."""
    return lambda: nullcontext(Anew(generate))


@runtime_checkable
class SessionEngine(RolloutEngine, Protocol):
    """An engine that keeps what conversations have read."""

    def session(self) -> AbstractContextManager[MultiTurnSession]:
        """Open a session. All that it keeps is freed at its end."""
        ...


def talk_of(engine: RolloutEngine) -> Talk:
    """Sessions of an engine; of one that keeps nothing, `anew`."""
    if isinstance(engine, HFEngine):
        return lambda: session_of(engine)
    return engine.session if isinstance(engine, SessionEngine) else anew(engine.generate)


@dataclass(frozen=True, kw_only=True)
class EnvSetup:
    """What the episodes of a run share."""

    pool: EnvPool
    talk: Talk
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
    longest: int | None = None
    """Tokens of the longest prompt; None: no limit but that of the encoder, for the first."""
    forks: Forks = NONE
    spent: Spent = field(default_factory=Spent)
    """What the episodes have waited for."""


def make_table(
    bundle: Processor,
    store: MediaStore,
    folder: Path,
    *,
    pool: EnvPool,
    talk: Talk,
    settings: GenerationSettings,
    history: History,
    answer_format: str,
    turns: int,
    longest: int | None = None,
    forks: Forks = NONE,
    whole: bool = False,
) -> EnvSetup:
    """A table for a model's processor, with screens as files of `folder` that `store` decodes. `longest`: tokens of a prompt; `whole`: the
    environment reads answers itself, tags and all."""
    return EnvSetup(
        pool=pool,
        talk=talk,
        settings=settings,
        conversation=Conversation(Encoder.of(bundle, store, folder, max_prompt_tokens=1 << 20 if longest is None else longest)),
        handle=lambda ref: store.get(ref, folder).handle,
        screens=ScreenFolder(folder),
        history=history,
        turns=turns,
        action=(lambda text: text) if whole else (lambda text: action_of(text, answer_format)),
        answer_format=answer_format,
        longest=longest,
        forks=forks,
    )


@dataclass
class _Attempt:
    """An attempt that is played."""

    number: int
    """Among all that are played together."""
    task: Mapping[str, Any]
    seed: int
    place: int
    """Of its task."""
    k: int
    own: Episode
    episode: Episode
    """Where it is: its own, or that of an attempt that did the same so far."""
    reply: Reply
    optimum: Optimum | None
    turns: int
    """Most answers of it."""
    done: list[TrajectoryTurn] = field(default_factory=list[TrajectoryTurn])
    seen: Snapshot | None = None

    def trajectory(self, identity: Mapping[str, str]) -> Trajectory:
        fault = self.reply.fault
        turns = tuple(self.done) if fault is None else spoilt(self.done)
        return Trajectory(
            task=dict(self.task), seed=self.seed, k=self.k, turns=turns, fault=fault, identity=dict(identity), optimum=self.optimum
        )


def run_attempts(
    table: EnvSetup, tasks: Sequence[tuple[Mapping[str, Any], int]], attempts: int | Sequence[int], seed_of: Callable[[int, int, int], int]
) -> list[list[Trajectory]]:
    """Attempts at each (task, environment's seed), the same number for all or one for each. `seed_of(place of the task, k, turn)` seeds an
    answer.

    Raises:
        ConfigError: a task's own limit is no number of turns.
        RowError, MediaError: an observation cannot be encoded.
    """
    sizes = [attempts] * len(tasks) if isinstance(attempts, int) else attempts
    limits = [min(table.turns, turns_of(task) or table.turns) for task, _ in tasks]
    ahead = table.pool.ahead
    groups = [ahead.take(task, seed, n) for (task, seed), n in zip(tasks, sizes, strict=True)]
    opened = [(place, k, episode) for place, group in enumerate(groups) for k, episode in enumerate(group)]
    try:
        with table.spent.on("environment"):
            firsts = [first for group in ahead.firsts(groups) for first in group]
        every = [
            _Attempt(number, recorded(tasks[place][0]), tasks[place][1], place, k, own, shown_by, first, first.optimum, limits[place])
            for number, ((place, k, own), (first, shown_by)) in enumerate(zip(opened, firsts, strict=True))
        ]
        with table.talk() as session:
            _play(table, every, session, seed_of)
        ahead.learn([[one.episode for one in every if one.place == place] for place in range(len(groups))])
    finally:
        for *_, episode in opened:
            episode.close()
    made = [one.trajectory(table.pool.identity) for one in every]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [made[start : start + n] for start, n in zip(starts, sizes, strict=True)]


def _play(table: EnvSetup, every: Sequence[_Attempt], session: MultiTurnSession, seed_of: Callable[[int, int, int], int]) -> None:
    """Turn after turn, until all attempts are over."""
    for turn in range(table.turns):
        waiting = [one for one in every if one.reply.observation is not None]
        asked = _asked(table, waiting, turn)
        session.forget(one.number for one in every if one.reply.observation is None)
        if not asked:
            break
        goes_on = turn + 1 < table.turns and table.history.window(turn + 1).start <= turn
        seeds = [seed_of(alike[0].place, table.forks.leader(alike[0].k, turn), turn) for alike, _ in asked]
        with table.spent.on("sampling"):
            answers = _answers(table, session, asked, seeds, goes_on=goes_on)
        each = [(one, answer) for (alike, _), answer in zip(asked, answers, strict=True) for one in alike]
        with table.spent.on("environment"):
            _act(table, each)
        faults.point("rollout.turn")


def _act(table: EnvSetup, each: Sequence[tuple[_Attempt, Rollout]]) -> None:
    """Each attempt does what it has answered. Attempts that were one so far and do the same remain one. Of those that do not, the first
    goes on in the world that they had, and each other one in its own, which first does what that one did."""
    pasts = {id(one.episode): one.episode.past() for one, _ in each}
    places: dict[tuple[int, str], Episode] = {}
    taken: set[int] = set()
    names = [(id(one.episode), table.action(answer.text)) for one, answer in each]
    for (one, _), name in zip(each, names, strict=True):
        if name not in places:
            if name[0] in taken:
                one.own.follow(pasts[name[0]])
            places[name] = one.own if name[0] in taken else one.episode
            taken.add(name[0])
    steps = {name: episode.step(name[1]) for name, episode in places.items()}
    for (one, answer), name in zip(each, names, strict=True):
        one.episode, came = places[name], steps[name].result()
        if came.fault is not None and one.episode is not one.own:  # a fault is that of one attempt
            one.own.follow(pasts[name[0]])
            one.episode, came = one.own, one.own.step(name[1]).result()
        _record(one, answer, came)


def _answers(
    table: EnvSetup, session: MultiTurnSession, asked: Sequence[tuple[Sequence[_Attempt], Prompt]], seeds: Sequence[int], *, goes_on: bool
) -> list[Rollout]:
    """An answer to each (attempts that say the same, prompt); attempts at a task with equal prompts are asked together. `goes_on`: the
    next prompts begin with these."""
    together: dict[object, list[int]] = {}
    for n, ((one, *_), prompt) in enumerate(asked):
        together.setdefault((one.place, prompt.ids, prompt.media), []).append(n)
    requests = [
        Request(
            prompt=asked[places[0]][1],
            seeds=tuple(seeds[n] for n in places),
            ks=tuple(asked[n][0][0].k for n in places),
            conversations=tuple(asked[n][0][0].number for n in places),
            alike=tuple(tuple(one.number for one in asked[n][0][1:]) for n in places),
            goes_on=goes_on,
        )
        for places in together.values()
    ]
    found: dict[int, Rollout] = {}
    for places, rollouts in zip(together.values(), session.generate(requests, table.settings), strict=True):
        found |= dict(zip(places, rollouts, strict=True))
    return [found[n] for n in range(len(asked))]


def _asked(table: EnvSetup, waiting: Sequence[_Attempt], turn: int) -> list[tuple[list[_Attempt], Prompt]]:
    """Attempts that say the same at this turn, with what they are asked under. One whose prompt has grown too long is over, and one that
    saw something else than those that it should be like has drifted."""
    blocks: dict[tuple[int, int], list[_Attempt]] = {}
    for one in waiting:
        assert one.reply.observation is not None
        one.seen = keep(one.reply.observation, table.screens)
        blocks.setdefault((one.place, table.forks.leader(one.k, turn)), []).append(one)
    out: list[tuple[list[_Attempt], Prompt]] = []
    for first, *others in blocks.values():
        alike = [first]
        for one in others:
            if (one.seen, one.done) == (first.seen, first.done):
                alike.append(one)
            else:
                one.reply = Reply(fault="drift", detail=f"attempt {one.k} saw something else than attempt {first.k} after the same actions")
        prompt = _prompt(table, first)
        if prompt is not None:
            out.append((alike, prompt))
            continue
        for one in alike:
            one.reply = Reply()
            one.done[-1] = replace(one.done[-1], outcome="context")
    return out


def _prompt(table: EnvSetup, one: _Attempt) -> Prompt | None:
    """What the next answer is sampled under; None where it has grown too long."""
    assert one.seen is not None
    so_far = Trajectory(task=one.task, seed=one.seed, k=one.k, turns=tuple(one.done))
    try:
        prompt = next_prompt(so_far, one.seen, table.history, table.conversation, table.handle, answer_format=table.answer_format)
        if table.longest is not None and len(prompt.ids) > table.longest:
            raise RowError("overlong", f"a prompt of {len(prompt.ids)} tokens is longer than the {table.longest} that are allowed")
    except RowError as error:
        if error.reason != "overlong" or not one.done:
            raise
        return None
    return prompt


def _record(one: _Attempt, answer: Rollout, came: Reply) -> None:
    assert one.seen is not None
    limit = len(one.done) + 1 == one.turns and not came.done
    outcome = "turns" if limit else came.outcome
    one.reply = Reply() if limit else came
    if came.done or limit:
        one.episode.close()  # its room is for one that begins ahead
        one.own.close()
    if came.fault is not None and not one.episode.began:
        one.done.clear()  # it was shown what another saw, and never saw anything itself
        return
    one.done.append(
        TrajectoryTurn(
            seen=one.seen,
            action=answer.text,
            ids=answer.ids,
            logprobs=answer.logprobs,
            routes=answer.routes,
            finish=answer.finish,
            reward=came.reward,
            outcome=outcome,  # pyright: ignore[reportArgumentType]
            info=came.info,
        )
    )


def action_of(text: str, answer_format: str) -> str:
    """What the environment is given: the answer between the tags, or the whole text where there are none or it stands alone."""
    if answer_format == FREE:
        return text
    answer = parse(text, answer_format).answer
    return text if answer is None else answer
