"""Collect a step's rollouts: every prompt's group is generated, completed by the strategy, scored and journalled.

Prompts are generated in batches of `generation_batch_size`. A batch is generated as a whole or replayed from the journal as a whole:
the seeds of a rollout belong to that rollout alone, but the last bits of batched kernels may depend on what else is in the batch. So
after a crash, a batch that the journal does not hold completely is generated again with the same prompts. Groups that the journal
already has are not written twice.

What the journal has is used only for what it was sampled and scored for: a row whose media, question or gold answer changed since is
refused, or, with `accept_changed`, sampled again.

Scoring may take much longer than generation where a judge is asked. Before such a wait, and when it ends the run, the sampled rollouts
are journalled without scores; the same command then asks only for the scores that are missing.

Groups are scored on a second thread while others are still generated; `score_seconds` is the time that was spent waiting for scores.
`begin` gives a `Collection` that may be sampled first and waited for later (`train.pipeline`): what it has sampled is journalled at once.
Strategies that sample again under hints have a collector of their own, `rollout.guide`; so have episodes of several turns.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from vlmrl import faults, rng
from vlmrl.errors import CheckpointError, Preempted, RemoteError
from vlmrl.protocols import GuidingStrategy, RolloutEngine, Strategy
from vlmrl.rollout.journal import Journal, changed_inputs, rollouts_of, sampled_record, scored_group, scored_record
from vlmrl.types import GenerationSettings, Group, Prompt, Request, Rollout, ScoredGroup

PATIENCE = 1.0
"""Seconds that scoring may take beyond generation before what was sampled is journalled without its scores."""

T = TypeVar("T")


@dataclass(kw_only=True)
class RolloutBatch:
    """Result of a step's collection: scored groups in plan order, and where the time went."""

    groups: list[ScoredGroup] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    """What hints cost and why some were left out, summed over the groups: `guidance/groups` that asked for any, `guidance/helped` that
    hold a guided rollout, `guidance/rollouts` and `guidance/tokens` sampled, and `guidance/<reason>` of hints that could not be used."""
    replayed: int = 0
    from_journal: list[str] = field(default_factory=list[str])
    """Groups whose answers were not sampled by this process."""
    rollout_seconds: float = 0.0
    score_seconds: float = 0.0


@dataclass(kw_only=True)
class PendingGroup:
    """A group that has been sampled and waits for its scores."""

    place: int
    """In the step's plan; a coordinate of the seeds."""
    step: int
    group: Group
    notes: Counter[str] = field(default_factory=Counter)
    expected_tokens: float = 0.0
    """Predicted length of an answer."""
    scored: ScoredGroup | None = None
    """Set when the group is finished."""

    def finished(self) -> ScoredGroup:
        assert self.scored is not None
        return self.scored


@dataclass(frozen=True, kw_only=True)
class GenerationBatch:
    """Prompts that are generated together, and what the journal has of their groups."""

    ids: Sequence[str]
    """Of the groups."""
    prompts: Sequence[tuple[int, Prompt]]
    """(place in the plan, prompt)"""
    num_generations: Sequence[int]
    """Rollouts of each group."""
    step: int
    journal: Journal
    known: dict[str, dict[str, Any]]
    """Group id -> its last record; without scores where only its rollouts are there."""
    expected_tokens: Mapping[str, float] = field(default_factory=dict[str, float])
    """Sample id -> predicted length of an answer, as it was known when the step was planned."""
    last: bool = True
    """Of those that are collected together."""

    def in_journal(self, *, scored: bool) -> bool:
        """Whether the journal has all groups, and with `scored` all with their scores."""
        records = [self.known.get(group_id) for group_id in self.ids]
        return all(record is not None and (record["scores"] is not None or not scored) for record in records)

    def scored_record(self, group_id: str) -> dict[str, Any] | None:
        """Find the record of a group with its scores; None if the journal has none."""
        record = self.known.get(group_id)
        return None if record is None or record["scores"] is None else record

    def write(self, record: dict[str, Any]) -> None:
        self.journal.append(record)
        self.known[record["group"]] = record


@dataclass(kw_only=True)
class Scoring:
    """A batch whose groups are sampled and wait for their scores, or come from the journal with them."""

    batch: GenerationBatch
    pending: dict[int, PendingGroup] = field(default_factory=dict[int, PendingGroup])
    """By place in the batch."""
    futures: list[Future[PendingGroup]] = field(default_factory=list["Future[PendingGroup]"])
    thread: ThreadPoolExecutor | None = None
    """None where the journal has all scores."""


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Makes and scores the groups of a stage's steps. `stage` (its name) separates the seeds of stages."""

    engine: RolloutEngine
    strategy: Strategy
    score: Callable[[Group, int], ScoredGroup]
    """(group, step of the stage that it is of) -> the group with its rewards."""
    tokenize: Callable[[str], Sequence[int]]
    settings: GenerationSettings
    num_generations: int
    """Rollouts of a group, unless `collect` is told otherwise."""
    generation_batch_size: int
    """Prompts that are generated together."""
    seed: int
    stage: str
    accept_changed: bool = False
    """Sample the groups of changed rows again, instead of refusing to go on (`data.changed`)."""
    say: Callable[[str], None] = field(default=lambda _: None)

    journals_unscored: ClassVar[bool] = True
    """Whether a group may be journalled before it is scored."""

    def __post_init__(self) -> None:
        if isinstance(self.strategy, GuidingStrategy) and self.journals_unscored:
            name = type(self.strategy).__name__
            raise ValueError(f"strategy {name} samples again under hints: use rollout.guide.GuidedCollector, which needs `encode`")

    def collect(self, prompts: Sequence[tuple[int, Prompt]], *, step: int, journal: Journal, **plan: Any) -> RolloutBatch:
        """Make the groups of `(place in the plan, prompt)`, generated or replayed. `plan`: what else `begin` takes.

        Raises:
            RemoteError, Preempted: scoring could not go on; what was sampled and scored is in the journal.
            CheckpointError: rows are not those that the journal's answers were sampled and scored for.
        """
        return self.begin(prompts, step=step, journal=journal, **plan).finish()

    def begin(
        self,
        prompts: Sequence[tuple[int, Prompt]],
        *,
        step: int,
        journal: Journal,
        num_generations: Sequence[int] | None = None,
        expected_tokens: Mapping[str, float] | None = None,
    ) -> Collection:
        """Prepare what `collect` does; nothing is generated yet.

        Args:
            num_generations: rollouts of each group, where they differ.
            expected_tokens: sample id -> predicted length of an answer; where they are known, the longest begin first.

        Raises:
            CheckpointError: rows are not those that the journal's answers were sampled and scored for.
        """
        sizes = num_generations or [self.num_generations] * len(prompts)
        names = [f"{self.stage}/{step}/{place}/{prompt.sample.id}" for place, prompt in prompts]
        known = self._known(journal, names, [prompt for _, prompt in prompts])
        out = RolloutBatch(from_journal=[name for name in names if name in known and known[name]["scores"] is not None])
        batches: list[GenerationBatch] = []
        for start in range(0, len(prompts), self.generation_batch_size):  # the unit of replay: see the top
            part = slice(start, start + self.generation_batch_size)
            batches.append(
                GenerationBatch(
                    ids=names[part],
                    prompts=prompts[part],
                    num_generations=sizes[part],
                    step=step,
                    journal=journal,
                    known=known,
                    expected_tokens=expected_tokens or {},
                    last=start + self.generation_batch_size >= len(prompts),
                )
            )
        return Collection(collector=self, batches=batches, journal=journal, out=out)

    def _known(self, journal: Journal, ids: Sequence[str], prompts: Sequence[Prompt]) -> dict[str, dict[str, Any]]:
        """Group id -> its last record, without those that were sampled or scored for something else.

        Raises:
            CheckpointError: there are such records and they are not to be sampled again.
        """
        known = {record["group"]: record for record in journal.replay()}  # the last one: with scores, if they came
        changed: list[str] = []
        for group_id, prompt in zip(ids, prompts, strict=True):
            parts = changed_inputs(known[group_id], prompt) if group_id in known else []
            if parts:
                sample = prompt.sample
                media = f" ({', '.join(ref.path for ref in sample.media)})" if "media" in parts else ""
                changed.append(f"row '{sample.id}' ({sample.source}): {', '.join(parts)} changed{media}; group {group_id}")
                del known[group_id]  # so that it is sampled again, if the run goes on
        if changed and not self.accept_changed:
            lines = "".join(f"\n  {line}" for line in changed)
            raise CheckpointError(
                f"{journal.path}: {len(changed)} groups were sampled and scored for other rows than there are now:{lines}\n"
                "  put the data back, or choose another run.name; with data.changed: accept they are sampled again"
            )
        for line in changed:
            self.say(f"data.changed: accept: sampled again: {line}")
        return known

    def start(self, batch: GenerationBatch, out: RolloutBatch) -> Scoring:
        """Generate a batch, unless the journal has its rollouts, and begin to score it."""
        if batch.in_journal(scored=True):
            out.replayed += len(batch.ids)
            return Scoring(batch=batch, pending={number: self._replayed(batch, number) for number in range(len(batch.ids))})
        thread = ThreadPoolExecutor(max_workers=1)
        one = Scoring(batch=batch, thread=thread)
        try:
            if self.journals_unscored and batch.in_journal(scored=False):
                self._score_sampled(one, thread, out)
            else:
                self._generate(one, thread, out)
        except BaseException as error:
            thread.shutdown()  # waits: scores that are being made are journalled below
            if isinstance(error, (RemoteError, Preempted)):
                self.keep(one)
            raise
        return one

    def settle(self, one: Scoring, out: RolloutBatch) -> list[PendingGroup]:
        """Wait for the scores of all groups of a batch, and journal them."""
        batch = one.batch
        if one.thread is None:
            return [one.pending[number] for number in range(len(batch.ids))]
        try:
            with one.thread:
                results(one.futures, out, long_wait=lambda: self.keep(one))
                self._go_on(one, one.thread, out)
        except (RemoteError, Preempted):
            self.keep(one)
            raise
        for number in range(len(batch.ids)):
            if batch.scored_record(batch.ids[number]) is None:
                batch.write(self._record(one.pending[number]))
            else:  # scored before a crash: a deadline or a judge might decide otherwise the second time, and the first one stands
                one.pending[number] = self._replayed(batch, number)
        batch.journal.sync()  # scores may have cost money
        faults.point("rollout.chunk")
        return [one.pending[number] for number in range(len(batch.ids))]

    def _generate(self, one: Scoring, thread: ThreadPoolExecutor, out: RolloutBatch) -> None:
        """Sample every prompt of a batch; a group is scored on `thread` as soon as its last rollout has ended."""
        batch = one.batch

        def score(number: int, rollouts: Sequence[Rollout]) -> Future[PendingGroup]:
            one.pending[number] = self._pending(batch, number, rollouts)
            return thread.submit(self._score_group, one.pending[number])

        one.futures = self._sample(self.requests(batch), score, out)

    def requests(self, batch: GenerationBatch) -> list[Request]:
        """Make what a batch asks the engine for, one request per group."""
        sizes = zip(batch.prompts, batch.num_generations, strict=True)
        # the place is a coordinate too: a step that crosses an epoch may hold one sample twice
        return [
            self._request(
                prompt,
                self.strategy.sampled(size),
                (batch.step, place, prompt.sample.id),
                expected_tokens=batch.expected_tokens.get(prompt.sample.id, 0.0),
            )
            for (place, prompt), size in sizes
        ]

    def _score_sampled(self, one: Scoring, thread: ThreadPoolExecutor, out: RolloutBatch) -> None:
        """Score groups that were sampled before the run was stopped; those that have been scored are not scored again."""
        batch = one.batch
        for number, group_id in enumerate(batch.ids):
            if batch.scored_record(group_id) is not None:
                one.pending[number] = self._replayed(batch, number)
            else:
                one.pending[number] = self._sampled(batch, number)
                one.futures.append(thread.submit(self._score_group, one.pending[number]))
        out.replayed += len(batch.ids)
        out.from_journal += [group_id for group_id in batch.ids if batch.scored_record(group_id) is None]

    def _go_on(self, one: Scoring, thread: ThreadPoolExecutor, out: RolloutBatch) -> None:
        """Do what follows the scores of a batch's own rollouts: nothing here, rounds of hints in `rollout.guide`."""

    def _score_group(self, one: PendingGroup) -> PendingGroup:
        """Complete a group and score it."""
        one.scored = self.score(self._complete(one.group, one.step), one.step)
        return one

    def _complete(self, group: Group, step: int) -> Group:
        """Add the strategy's own rollouts to a group of a step."""
        return self.strategy.complete(group, lambda g: self.score(g, step).scores.total(), self.tokenize)

    def keep(self, scoring: Scoring) -> None:
        """Journal what there is of a batch: groups that are scored, and the others' rollouts."""
        batch = scoring.batch
        for number in sorted(scoring.pending):
            one = scoring.pending[number]
            unwritten = batch.scored_record(one.group.id) is None if one.scored is not None else one.group.id not in batch.known
            if unwritten and (one.scored is not None or self.journals_unscored):  # at most twice: without and with scores
                batch.write(self._record(one))
        batch.journal.sync()

    def _pending(self, batch: GenerationBatch, number: int, rollouts: Sequence[Rollout]) -> PendingGroup:
        place, prompt = batch.prompts[number]
        return PendingGroup(
            place=place,
            step=batch.step,
            group=Group(id=batch.ids[number], prompt=prompt, rollouts=tuple(rollouts)),
            expected_tokens=batch.expected_tokens.get(prompt.sample.id, 0.0),
        )

    def _sampled(self, batch: GenerationBatch, number: int) -> PendingGroup:
        """Read back a group whose rollouts the journal has, and not their scores."""
        return self._pending(batch, number, rollouts_of(batch.known[batch.ids[number]]))

    def _record(self, one: PendingGroup) -> dict[str, Any]:
        """Make the journal's record of a group, with its scores if they are there."""
        return sampled_record(one.group) if one.scored is None else scored_record(one.scored, one.notes)

    def measured(self, notes: Mapping[str, float], *, step: int) -> Mapping[str, float]:
        """Say what is logged of a finished step, from the notes of all ranks. Called once per step, in order, on every rank alike."""
        return notes

    def _replayed(self, batch: GenerationBatch, number: int) -> PendingGroup:
        """Read back a group that the journal has with its scores."""
        (place, prompt), record = batch.prompts[number], batch.known[batch.ids[number]]
        scored = scored_group(record, prompt)
        return PendingGroup(place=place, step=batch.step, group=scored.group, scored=scored, notes=Counter(record["notes"]))

    def _request(
        self, prompt: Prompt, size: int, coordinates: tuple[int | str, ...], *more: int | str, expected_tokens: float = 0.0
    ) -> Request:
        """Make a request for `size` rollouts; the seed of rollout k has the coordinates (..., k, `more`)."""
        ks = tuple(range(size))
        seeds = tuple(rng.key(self.seed, "rollout", self.stage, *coordinates, k, *more) for k in ks)
        return Request(prompt=prompt, ks=ks, seeds=seeds, expected_tokens=expected_tokens)

    def _sample(
        self, requests: Sequence[Request], submit: Callable[[int, Sequence[Rollout]], Future[T]], out: RolloutBatch
    ) -> list[Future[T]]:
        """Generate; `submit(number, rollouts)` is called as soon as all rollouts of a request are there."""
        futures: dict[int, Future[T]] = {}

        def done(number: int, rollouts: Sequence[Rollout]) -> None:
            futures[number] = submit(number, rollouts)

        began = time.perf_counter()
        self.engine.generate(requests, self.settings, done)
        out.rollout_seconds += time.perf_counter() - began
        return [futures[number] for number in range(len(requests))]  # in plan order, whichever ended first


@dataclass(kw_only=True)
class Collection:
    """A step's groups on their way from prompts to scores. `finish` does what `sample` has left."""

    collector: Collector
    batches: Sequence[GenerationBatch]
    journal: Journal
    out: RolloutBatch
    _begun: list[Scoring] = field(default_factory=list[Scoring])

    def sample(self) -> None:
        """Generate all groups and journal their rollouts. Their scores are on the way, and `finish` waits for them."""
        for batch in self.batches[len(self._begun) :]:
            one = self.collector.start(batch, self.out)
            self._begun.append(one)
            self.collector.keep(one)  # once the weights have moved on, nobody could sample these answers again

    def largest(self) -> list[Request]:
        """List what the batch with the longest prompts will ask for; nothing where the journal has everything."""
        asked = [batch for batch in self.batches if not batch.in_journal(scored=False)]
        longest = max(asked, key=lambda batch: sum(len(prompt.ids) for _, prompt in batch.prompts), default=None)
        return [] if longest is None else [request for request in self.collector.requests(longest) if request.seeds]

    def keep(self) -> None:
        """Journal what there is: rollouts, and the scores that have come."""
        for one in self._begun:
            self.collector.keep(one)

    def finish(self) -> RolloutBatch:
        """Finish the groups: scored, and journalled. What is not sampled yet is now, batch by batch.

        Raises:
            RemoteError, Preempted: scoring could not go on; what was sampled and scored is in the journal.
        """
        notes: Counter[str] = Counter()
        for number, batch in enumerate(self.batches):
            if number == len(self._begun):
                self._begun.append(self.collector.start(batch, self.out))  # not sampled ahead
            for one in self.collector.settle(self._begun[number], self.out):
                self.out.groups.append(one.finished())
                notes.update(one.notes)
        self.journal.finish()
        self.out.notes = dict(sorted(notes.items()))
        return self.out

    @property
    def replays(self) -> bool:
        """Whether the journal has any of the groups."""
        return any(group_id in batch.known for batch in self.batches for group_id in batch.ids)

    def missing(self) -> list[str]:
        """List the groups that would have to be generated."""
        return [group_id for batch in self.batches for group_id in batch.ids if group_id not in batch.known]

    def from_journal(self) -> list[Group]:
        """List the groups whose answers were not sampled by this process, of the batches that have begun."""
        names = set(self.out.from_journal)
        return [one.group for scoring in self._begun for one in scoring.pending.values() if one.group.id in names]

    def records(self) -> list[dict[str, Any]]:
        """List the last record of every group, with its scores if it has them already.

        Raises:
            KeyError: a group is not sampled yet.
        """
        return [batch.known[group_id] for batch in self.batches for group_id in batch.ids]

    def close(self) -> None:
        """Forget the scores that are still asked for; the one that is being computed is waited for."""
        for one in self._begun:
            if one.thread is not None:
                one.thread.shutdown(cancel_futures=True)


def results(futures: Sequence[Future[T]], out: RolloutBatch, long_wait: Callable[[], None] = lambda: None) -> list[T]:
    """Wait for scores; `long_wait` is called where they take longer than `PATIENCE`."""
    began = time.perf_counter()
    if wait(futures, timeout=PATIENCE).not_done:
        long_wait()
    results = [future.result() for future in futures]
    out.score_seconds += time.perf_counter() - began
    return results
