"""Run a step's prompts through engine, strategy and scoring, chunk by chunk, and journal every finished group.

A chunk is generated as a whole or replayed as a whole: what a row samples depends on its own seed only, but the last bits of
batched kernels may depend on the batch, so after a crash a chunk that is not complete in the journal is generated again with
exactly the same company. Groups that the journal already has are not written twice.

Scoring may wait for a service for as long as generation took, or longer. So what was sampled is journalled without scores before such
a wait and when one ends the run; the same command then only asks for the scores. (Not with a strategy that guides: its later rounds
are generated in company too, so there a chunk whose groups are not all scored begins anew.)

A strategy that guides may ask for more rollouts of a group, under prompts with hints, once the first ones are scored
(`GuidingStrategy`). Those of all groups of a chunk are generated together, round by round, until nobody asks.

Groups are completed and scored on a second thread while others are still generated; `score_seconds` is what had to be waited for.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from vlmrl import faults, rng
from vlmrl.errors import MediaError, Preempted, RemoteError, RowError
from vlmrl.protocols import GuidingStrategy, RolloutEngine, Strategy
from vlmrl.rollout.journal import Journal, rollout_from_json, rollout_to_json, scores_from_json, scores_to_json
from vlmrl.types import GenerationSettings, Group, Guidance, HintRequest, HintRound, Prompt, Request, Rollout, Sample, ScoredGroup

FREE = "free"
"""Template of prompts for texts that the policy writes (`data.render.FREE`)."""

PATIENCE = 1.0
"""Seconds that scoring may take beyond generation before what was sampled is journalled without its scores."""

T = TypeVar("T")


@dataclass(kw_only=True)
class Collected:
    """Scored groups in plan order, and where the time went."""

    groups: list[ScoredGroup] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    """What guidance cost and why it was left out, summed over the groups: `guidance/groups` that asked for any, `guidance/helped` that
    hold a guided row, `guidance/rollouts` and `guidance/tokens` sampled, and `guidance/<reason>` of hints that could not be used."""
    replayed: int = 0
    rollout_seconds: float = 0.0
    score_seconds: float = 0.0


@dataclass(kw_only=True)
class _Open:
    """A group on its way, with what is known so far."""

    place: int
    group: Group
    step: int
    first: ScoredGroup | None = None
    rounds: list[HintRound] = field(default_factory=list)
    wishes: list[HintRequest] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    scored: ScoredGroup | None = None
    """Set when the group is finished."""

    def finished(self) -> ScoredGroup:
        assert self.scored is not None
        return self.scored


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """Prompts that are generated together, and what the journal has of them."""

    ids: Sequence[str]
    """Of their groups."""
    prompts: Sequence[tuple[int, Prompt]]
    rows: Sequence[int]
    step: int
    journal: Journal
    known: dict[str, dict[str, Any]]
    """Group id -> its last record; without scores where only its rollouts are there."""

    def are(self, scored: bool) -> bool:
        """Whether the journal has all groups, and if so asked all with their scores."""
        records = [self.known.get(group_id) for group_id in self.ids]
        return all(record is not None and (record["scores"] is not None or not scored) for record in records)

    def scored_record(self, group_id: str) -> dict[str, Any] | None:
        record = self.known.get(group_id)
        return None if record is None or record["scores"] is None else record

    def write(self, record: dict[str, Any]) -> None:
        self.journal.append(record)
        self.known[record["group"]] = record


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Everything that stays the same from step to step. `coordinates` (stage name) separate the seeds of stages."""

    engine: RolloutEngine
    strategy: Strategy
    score: Callable[[Group], ScoredGroup]
    tokenize: Callable[[str], Sequence[int]]
    settings: GenerationSettings
    num_generations: int
    generation_batch_size: int
    seed: int
    stage: str
    expected_tokens: Callable[[str], float] = field(default=lambda _: 0.0)
    """Predicted answer length of a sample, from the ledger."""
    encode: Callable[[Sample, str], Prompt] | None = None
    """(sample, answer_format) -> prompt, `data.encode.Encoder.encode`: for the prompts with hints of a strategy that guides."""

    def __post_init__(self) -> None:
        if isinstance(self.strategy, GuidingStrategy) and self.encode is None:
            name = type(self.strategy).__name__
            raise ValueError(f"strategy {name} samples under hints, so the collector needs `encode` to make their prompts")

    def collect(
        self, prompts: Sequence[tuple[int, Prompt]], *, step: int, journal: Journal, rollouts: Sequence[int] | None = None
    ) -> Collected:
        """Groups for `(place in the plan, prompt)`, generated or replayed. `rollouts`: rows of each group, where they differ."""
        out = Collected()
        wanted = rollouts or [self.num_generations] * len(prompts)
        notes: Counter[str] = Counter()
        known = {record["group"]: record for record in journal.replay()}
        for start in range(0, len(prompts), self.generation_batch_size):
            part = slice(start, start + self.generation_batch_size)
            ids = [f"{self.stage}/{step}/{place}/{prompt.sample.id}" for place, prompt in prompts[part]]
            chunk = _Chunk(ids=ids, prompts=prompts[part], rows=wanted[part], step=step, journal=journal, known=known)
            if chunk.are(scored=True):
                for group_id, (_, prompt) in zip(ids, chunk.prompts, strict=True):
                    out.groups.append(self._replay(known[group_id], prompt))
                    notes.update(known[group_id]["notes"])
                out.replayed += len(ids)
                continue
            for done in self._finish(chunk, out):
                scored = done.finished()
                record = chunk.scored_record(scored.group.id)
                if record is None:
                    chunk.write(_record(scored, done.notes))
                else:
                    # scored before the crash: a deadline or a judge might decide otherwise the second time, and the first one stands
                    scored, done.notes = self._replay(record, scored.group.prompt), Counter(record["notes"])
                out.groups.append(scored)
                notes.update(done.notes)
            journal.sync()
            faults.point("rollout.chunk")
        journal.finish()
        out.notes = dict(sorted(notes.items()))
        return out

    def _finish(self, chunk: _Chunk, out: Collected) -> list[_Open]:
        """All groups of a chunk with their scores; their rollouts are generated, unless the journal has all of them.

        Raises:
            RemoteError, Preempted: scoring could not go on; what was sampled and scored is in the journal.
        """
        opened: dict[int, _Open] = {}
        try:
            with ThreadPoolExecutor(max_workers=1) as thread:
                if not self._guides and chunk.are(scored=False):
                    self._score_kept(chunk, thread, opened, out)
                else:
                    self._generate(chunk, thread, opened, out)
        except (RemoteError, Preempted):
            self._keep(chunk, opened)
            raise
        return [opened[number] for number in range(len(chunk.ids))]

    def _generate(self, chunk: _Chunk, thread: ThreadPoolExecutor, opened: dict[int, _Open], out: Collected) -> None:
        requests: list[Request] = []
        for (place, p), rows in zip(chunk.prompts, chunk.rows, strict=True):
            ks = tuple(range(self.strategy.sampled(rows)))
            # the place is a coordinate too: a batch that crosses an epoch may hold one sample twice
            requests.append(self._request(p, p.sample.id, ks, [(chunk.step, place, p.sample.id, k) for k in ks]))

        def begin(number: int, rollouts: Sequence[Rollout]) -> Callable[[], _Open]:
            return partial(self._advance, self._open(chunk, number, rollouts, opened))

        self._run(thread, requests, begin, out, long_wait=lambda: self._keep(chunk, opened))
        while any(one.wishes for one in opened.values()):
            self._round([opened[number] for number in sorted(opened) if opened[number].wishes], thread, out)

    def _score_kept(self, chunk: _Chunk, thread: ThreadPoolExecutor, opened: dict[int, _Open], out: Collected) -> None:
        """Score groups that were sampled before the run was stopped; those that have been scored are not asked about again."""
        futures: list[Future[_Open]] = []
        for number, group_id in enumerate(chunk.ids):
            record = chunk.known[group_id]
            if record["scores"] is None:
                one = self._open(chunk, number, tuple(rollout_from_json(r) for r in record["rollouts"]), opened)
                futures.append(thread.submit(self._advance, one))
            else:
                replayed = self._replay(record, chunk.prompts[number][1])
                self._open(chunk, number, replayed.group.rollouts, opened).scored = replayed
        out.replayed += len(chunk.ids)
        began = time.perf_counter()
        for future in futures:
            future.result()
        out.score_seconds += time.perf_counter() - began

    def _open(self, chunk: _Chunk, number: int, rollouts: Sequence[Rollout], opened: dict[int, _Open]) -> _Open:
        place, prompt = chunk.prompts[number]
        group = Group(id=chunk.ids[number], prompt=prompt, rollouts=tuple(rollouts))
        opened[number] = one = _Open(place=place, group=group, step=chunk.step)
        return one

    def _keep(self, chunk: _Chunk, opened: Mapping[int, _Open]) -> None:
        """Journal what there is of a chunk: groups that are scored, and the others' rollouts."""
        for number in sorted(opened):
            one, group_id = opened[number], chunk.ids[number]
            if one.scored is not None and chunk.scored_record(group_id) is None:
                chunk.write(_record(one.scored, one.notes))
            elif group_id not in chunk.known and not self._guides:
                chunk.write(_sampled(one.group))
        chunk.journal.sync()

    @property
    def _guides(self) -> bool:
        return isinstance(self.strategy, GuidingStrategy)

    def _run(
        self,
        thread: ThreadPoolExecutor,
        requests: Sequence[Request],
        begin: Callable[[int, Sequence[Rollout]], Callable[[], T]],
        out: Collected,
        long_wait: Callable[[], None] = lambda: None,
    ) -> list[T]:
        """Generate, and as soon as a request's rollouts are there do on the other thread what `begin(number, rollouts)` says.
        `long_wait` is called where that takes longer than `PATIENCE`."""
        futures: dict[int, Future[T]] = {}

        def done(number: int, rollouts: Sequence[Rollout]) -> None:
            futures[number] = thread.submit(begin(number, rollouts))

        began = time.perf_counter()
        self.engine.generate(requests, self.settings, done)
        out.rollout_seconds += time.perf_counter() - began
        began = time.perf_counter()
        if wait(futures.values(), timeout=PATIENCE).not_done:
            long_wait()
        results = [futures[number].result() for number in range(len(requests))]
        out.score_seconds += time.perf_counter() - began
        return results

    def _request(self, prompt: Prompt, sample_id: str, ks: tuple[int, ...], coordinates: Sequence[tuple[int | str, ...]]) -> Request:
        seeds = tuple(rng.key(self.seed, "rollout", self.stage, *c) for c in coordinates)
        return Request(prompt=prompt, ks=ks, seeds=seeds, expected_tokens=self.expected_tokens(sample_id))

    def _round(self, asking: Sequence[_Open], thread: ThreadPoolExecutor, out: Collected) -> None:
        """Sample what the groups wish for, score it, and let each group say whether it wants more."""
        waiting: list[tuple[_Open, HintRequest, Prompt]] = []
        for one in asking:
            for wish in one.wishes:
                prompt = self._guided_prompt(one, wish)
                if prompt is not None:
                    waiting.append((one, wish, prompt))
        requests: list[Request] = []
        for one, wish, prompt in waiting:
            ks, sample_id = tuple(range(wish.rows)), prompt.sample.id
            kind = "write" if wish.writes else "hint"
            requests.append(self._request(prompt, sample_id, ks, [(one.step, one.place, sample_id, k, kind, wish.tier) for k in ks]))

        def judge(number: int, rollouts: Sequence[Rollout]) -> Callable[[], HintRound]:
            return partial(self._judge, *waiting[number], rollouts)

        if requests:
            for (one, _, _), made in zip(waiting, self._run(thread, requests, judge, out), strict=True):
                one.rounds.append(made)
                one.notes["guidance/rollouts"] += len(made.rollouts)
                one.notes["guidance/tokens"] += sum(len(r.ids) for r in made.rollouts)
        began = time.perf_counter()
        for future in [thread.submit(self._advance, one) for one in asking]:
            future.result()
        out.score_seconds += time.perf_counter() - began

    def _guided_prompt(self, one: _Open, wish: HintRequest) -> Prompt | None:
        """The prompt of a wish; None, with the reason in the group's rounds and notes, where it cannot be made."""
        try:
            return self._encode(one.group.prompt, wish.question, FREE if wish.writes else one.group.prompt.answer_format)
        except (RowError, MediaError) as error:
            one.rounds.append(HintRound(request=wish, problem=error.reason))
            one.notes[f"guidance/{error.reason}"] += 1
            return None

    def _encode(self, plain: Prompt, question: str, answer_format: str) -> Prompt:
        assert self.encode is not None
        return self.encode(dataclasses.replace(plain.sample, question=question), answer_format)

    def _judge(self, one: _Open, wish: HintRequest, prompt: Prompt, rollouts: Sequence[Rollout]) -> HintRound:
        if wish.writes:
            return HintRound(request=wish, rollouts=tuple(rollouts))
        guidance = Guidance(question=wish.question, tier=wish.tier)
        rows = tuple(dataclasses.replace(r, provenance="guided", guidance=guidance) for r in rollouts)
        group = dataclasses.replace(one.group, rollouts=rows, guided=(prompt,))
        return HintRound(request=wish, rollouts=rows, rewards=tuple(self.score(group).scores.total()), prompt=prompt)

    def _advance(self, one: _Open) -> _Open:
        """Ask the strategy what is next for the group, and finish it when that is nothing."""
        if not isinstance(self.strategy, GuidingStrategy):
            one.scored = self.score(self._complete(one.group))
            return one
        if one.first is None:
            one.first = self.score(one.group)
        rewards = one.first.scores.total()
        try:
            one.wishes = self.strategy.more(one.group, rewards, one.rounds, step=one.step)
        except RowError as error:
            one.wishes = []
            one.notes[f"guidance/{error.reason}"] += 1
        _check_new(one)
        if one.wishes:
            one.notes["guidance/groups"] = 1
            return one
        group = self.strategy.merge(one.group, rewards, one.rounds)
        if group is not one.group:
            group = dataclasses.replace(group, guided=_used(group, one.rounds))
        group = self._complete(group)
        scored = one.first if group is one.group else self.score(group)
        if any(r.provenance == "guided" for r in group.rollouts):
            pairs = zip(rewards, one.group.rollouts, strict=True)
            scored = dataclasses.replace(scored, unguided=tuple((value, len(r.ids)) for value, r in pairs))
            one.notes["guidance/helped"] = 1
        one.scored = scored
        return one

    def _complete(self, group: Group) -> Group:
        """The group with the rows that the strategy adds."""
        return self.strategy.complete(group, lambda g: self.score(g).scores.total(), self.tokenize)

    def _replay(self, record: dict[str, Any], prompt: Prompt) -> ScoredGroup:
        rollouts = tuple(rollout_from_json(r) for r in record["rollouts"])
        questions = dict.fromkeys(r.guidance.question for r in rollouts if r.guidance is not None)
        guided = tuple(self._encode(prompt, question, prompt.answer_format) for question in questions)
        unguided = record["unguided"]
        return ScoredGroup(
            group=Group(id=record["group"], prompt=prompt, rollouts=rollouts, guided=guided),
            scores=scores_from_json(record["scores"]),
            unguided=None if unguided is None else tuple((None if v is None else float.fromhex(v), n) for v, n in unguided),
        )


def _check_new(one: _Open) -> None:
    """No seed may be used twice, and no strategy may ask for ever."""
    asked = [(r.request.tier, r.request.writes) for r in one.rounds] + [(w.tier, w.writes) for w in one.wishes]
    if len(set(asked)) < len(asked) or any(w.rows < 1 for w in one.wishes):
        raise ValueError(f"group '{one.group.id}': the strategy asked twice for a (tier, writes), or for no rows: {asked}")


def _used(group: Group, rounds: Sequence[HintRound]) -> tuple[Prompt, ...]:
    """The prompts with hints of the group's rows, each once, in the order of the rows."""
    made = {r.request.question: r.prompt for r in rounds if r.prompt is not None}
    return tuple(made[q] for q in dict.fromkeys(r.guidance.question for r in group.rollouts if r.guidance is not None))


def _record(scored: ScoredGroup, notes: Counter[str]) -> dict[str, Any]:
    unguided = scored.unguided
    return {
        "group": scored.group.id,
        "sample": scored.group.prompt.sample.id,
        "rollouts": [rollout_to_json(r) for r in scored.group.rollouts],
        "scores": scores_to_json(scored.scores),
        "unguided": None if unguided is None else [[None if v is None else float(v).hex(), n] for v, n in unguided],
        "notes": dict(notes),
    }


def _sampled(group: Group) -> dict[str, Any]:
    """The record of a group that waits for its scores: what was sampled, before the strategy adds rows of its own."""
    rollouts = [rollout_to_json(r) for r in group.rollouts]
    return {"group": group.id, "sample": group.prompt.sample.id, "rollouts": rollouts, "scores": None, "unguided": None, "notes": {}}
