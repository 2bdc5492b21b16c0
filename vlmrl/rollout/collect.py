"""Run a step's prompts through engine, strategy and scoring, chunk by chunk, and journal every finished group.

A chunk is generated as a whole or replayed as a whole: what a row samples depends on its own seed only, but the last bits of
batched kernels may depend on the batch, so after a crash a chunk that is not complete in the journal is generated again with
exactly the same company. Groups that the journal already has are not written twice.

A strategy that guides may ask for more rollouts of a group, under prompts with hints, once the first ones are scored
(`GuidingStrategy`). Those of all groups of a chunk are generated together, round by round, until nobody asks.

Groups are completed and scored on a second thread while others are still generated; `score_seconds` is what had to be waited for.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vlmrl import faults, rng
from vlmrl.errors import MediaError, RowError
from vlmrl.protocols import GuidingStrategy, RolloutEngine, Strategy
from vlmrl.rollout.journal import Journal, rollout_from_json, rollout_to_json, scores_from_json, scores_to_json
from vlmrl.types import GenerationSettings, Group, Guidance, HintRequest, HintRound, Prompt, Request, Rollout, Sample, ScoredGroup

FREE = "free"
"""Template of prompts for texts that the policy writes (`data.render.FREE`)."""

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
class Collector:
    """Everything that stays the same from step to step. `coordinates` (stage name) separate the seeds of stages."""

    engine: RolloutEngine
    strategy: Strategy
    score: Callable[[Group], ScoredGroup]
    tokenize: Callable[[str], Sequence[int]]
    settings: GenerationSettings
    per_prompt: int
    chunk_prompts: int
    seed: int
    stage: str
    expected_tokens: Callable[[str], float] = field(default=lambda _: 0.0)
    """Predicted answer length of a sample, from the ledger."""
    encode: Callable[[Sample, str], Prompt] | None = None
    """(sample, template) -> prompt, `data.encode.Encoder.encode`: for the prompts with hints of a strategy that guides."""

    def __post_init__(self) -> None:
        if isinstance(self.strategy, GuidingStrategy) and self.encode is None:
            name = type(self.strategy).__name__
            raise ValueError(f"strategy {name} samples under hints, so the collector needs `encode` to make their prompts")

    def collect(
        self, prompts: Sequence[tuple[int, Prompt]], *, step: int, journal: Journal, rollouts: Sequence[int] | None = None
    ) -> Collected:
        """Groups for `(place in the plan, prompt)`, generated or replayed. `rollouts`: rows of each group, where they differ."""
        out = Collected()
        wanted = rollouts or [self.per_prompt] * len(prompts)
        notes: Counter[str] = Counter()
        known = {record["group"]: record for record in journal.replay()}
        for start in range(0, len(prompts), self.chunk_prompts):
            chunk = prompts[start : start + self.chunk_prompts]
            ids = [f"{self.stage}/{step}/{place}/{prompt.sample.id}" for place, prompt in chunk]
            if all(group_id in known for group_id in ids):
                for group_id, (_, prompt) in zip(ids, chunk, strict=True):
                    out.groups.append(self._replay(known[group_id], prompt))
                    notes.update(known[group_id]["notes"])
                out.replayed += len(chunk)
                continue
            for done in self._generate(ids, chunk, wanted[start : start + self.chunk_prompts], step, out):
                scored = done.finished()
                record = known.get(scored.group.id)
                if record is None:
                    journal.append(_record(scored, done.notes))
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

    def _generate(
        self, ids: Sequence[str], chunk: Sequence[tuple[int, Prompt]], wanted: Sequence[int], step: int, out: Collected
    ) -> list[_Open]:
        requests: list[Request] = []
        for (place, p), rows in zip(chunk, wanted, strict=True):
            ks = tuple(range(self.strategy.sampled(rows)))
            # the place is a coordinate too: a batch that crosses an epoch may hold one sample twice
            requests.append(self._request(p, p.sample.id, ks, [(step, place, p.sample.id, k) for k in ks]))

        def begin(number: int, rollouts: Sequence[Rollout]) -> _Open:
            place, prompt = chunk[number]
            group = Group(id=ids[number], prompt=prompt, rollouts=tuple(rollouts))
            return self._advance(_Open(place=place, group=group, step=step))

        with ThreadPoolExecutor(max_workers=1) as thread:
            opened = self._run(thread, requests, begin, out)
            while any(one.wishes for one in opened):
                self._round([one for one in opened if one.wishes], thread, out)
        return opened

    def _run(
        self, thread: ThreadPoolExecutor, requests: Sequence[Request], finish: Callable[[int, Sequence[Rollout]], T], out: Collected
    ) -> list[T]:
        """Generate, and hand each request's rollouts to `finish(number, rollouts)` on the other thread as soon as they are there."""
        futures: dict[int, Future[T]] = {}

        def done(number: int, rollouts: Sequence[Rollout]) -> None:
            futures[number] = thread.submit(finish, number, rollouts)

        began = time.perf_counter()
        self.engine.generate(requests, self.settings, done)
        out.rollout_seconds += time.perf_counter() - began
        began = time.perf_counter()
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

        def judge(number: int, rollouts: Sequence[Rollout]) -> HintRound:
            return self._judge(*waiting[number], rollouts)

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
            return self._encode(one.group.prompt, wish.question, FREE if wish.writes else one.group.prompt.template)
        except (RowError, MediaError) as error:
            one.rounds.append(HintRound(request=wish, problem=error.reason))
            one.notes[f"guidance/{error.reason}"] += 1
            return None

    def _encode(self, plain: Prompt, question: str, template: str) -> Prompt:
        assert self.encode is not None
        return self.encode(dataclasses.replace(plain.sample, question=question), template)

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
        guided = tuple(self._encode(prompt, question, prompt.template) for question in questions)
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
