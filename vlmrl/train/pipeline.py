"""The queue between sampling and training: step t trains on answers that were sampled `rollout.staleness` = k steps of updates before.

Steps count from 0. Step t is planned, and sampled from the weights, after t - k finished steps; the first k + 1 are sampled from the
stage's starting weights. This is lock-step, not "at most": what a step samples from is a function of t, and so is every bit. With k = 0
the queue is empty whenever a step begins, and a step is planned, sampled and scored in turn.

Who waits for whom, in the order of time. What begins at a `└` is waited for at its `┘`:

    k = 0      main       plan 0 ─ sample 0 ─ finish 0 ─ train 0 ─ plan 1 ─ sample 1 ─ finish 1 ─ train 1 ─ ...
               scores                └ score 0 ────┘                          └ score 1 ────┘

    k = 1      main       plan 0 ─ sample 0 ─ plan 1 ─ sample 1 ─ finish 0 ─ train 0 ─ plan 2 ─ sample 2 ─ finish 1 ─ ...
               scores                └ score 0 ────────────────────────┘
               scores                                    └ score 1 ─────────────────────────────────────────────┘

    k = 1      main       plan 0 ─ land 0 ─ plan 1 ─ finish 0 ─ train 0 ─ land 1 ─ plan 2 ─ finish 1 ─ train 1 ─ land 2 ─ ...
    detached   sampling      └ sample 0 ┘      └ sample 1 ───────────────────┘        └ sample 2 ───────────────────┘

    plan t        waits for   train t - k - 1 (its weights), and land t - 1: an engine makes one step at a time
    finish t      waits for   every score of step t
    train t       waits for   finish t
    a checkpoint  waits for   land of every step in flight, and for no score
    a rank        waits for   the others at plan, land, finish and train, and nowhere else

**At the same time.** The scores of up to k + 1 steps are asked for together, on a thread per batch, while later steps are sampled and
earlier ones trained. An engine that generates with the policy's own weights samples between two updates. One with weights of its own
(`protocols.DetachedEngine`) may sample in a thread while the policy trains. Neither thread ever waits for another rank: ranks meet on
the main thread only, where all of them plan, join and train in the same order.

**After a crash.** The weights that sampled the steps in flight are gone. So a checkpoint first waits until these steps are sampled, and
holds their plans and journal records (`in_flight.rank-<n>.json`); scores that it does not hold are asked for again. What was sampled
after the checkpoint is replayed from its journal, or sampled again from the same weights.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from vlmrl import faults
from vlmrl.config.schema import RolloutStage
from vlmrl.errors import CheckpointError, ConfigError, MediaError, NumericsError, RowError
from vlmrl.policy.pack import Row
from vlmrl.protocols import DetachedEngine, why_not_ahead
from vlmrl.rollout.collect import Collection, Collector, RolloutBatch
from vlmrl.rollout.in_place import InPlace
from vlmrl.rollout.journal import Journal
from vlmrl.rollout.mismatch import Bounds, gaps
from vlmrl.train import dist
from vlmrl.train.manifest import read_sealed
from vlmrl.train.step import Learner, score_rows
from vlmrl.types import Group, PlannedPrompt, Prompt, Rollout, ScoredGroup

if TYPE_CHECKING:
    from vlmrl.train.stage.base import Stage

T = TypeVar("T")

IN_FLIGHT = "in_flight.rank-{rank}.json"
"""A checkpoint's file of a rank: the steps that were sampled and not trained yet."""
REPLAY_GAP = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Most nats by which the mean log-prob of a replayed group's tokens may differ, where the recipe does not say (`rollout.replay_gap`). On
the CPU in float32 the gap is 0; sampling and training kernels that round otherwise have one in every step (`sampling/logp_gap`)."""


@dataclass(kw_only=True)
class Flight:
    """A step that is planned and not trained yet: this rank's share."""

    step: int
    """Of the stage."""
    planned: Sequence[tuple[int, PlannedPrompt]]
    """With the place of each in the plan."""
    collection: Collection
    sampled: bool = False
    """Whether its answers are there. If not, `finish` samples them."""
    sampling: Future[None] | None = None
    """Where it is being sampled in a thread."""


class Pipeline:
    """The steps in flight of a stage; see the module docstring.

    Args:
        journal: folder of what was generated since the last checkpoint.
        bounds: on the gap between sampler and trainer, also for the engine's own probes.
        where_to_go_on: gives the end of the message where numbers are not finite: which weights are not, and the last good checkpoint.
        staleness: k.
        restored: checkpoint within the stage that this process goes on from.

    Raises:
        ConfigError: the collector's strategy cannot be sampled ahead.
    """

    def __init__(
        self,
        stage: Stage,
        collector: Collector,
        *,
        journal: Path,
        bounds: Bounds | None = None,
        where_to_go_on: Callable[[], str] = lambda: "start again from finite weights",
        staleness: int = 0,
        restored: Path | None = None,
    ):
        if staleness and (why := why_not_ahead(collector.strategy)):
            raise ConfigError([why])
        self.collector, self.bounds = collector, bounds or Bounds()
        self._stage, self._journals, self._where_to_go_on = stage, journal, where_to_go_on
        self._staleness, self._restored = staleness, restored
        self._queue: deque[Flight] = deque()
        # one thread: an engine makes one step at a time
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampling")

    def take(self, *, prompts: int, first: int = 0) -> tuple[list[tuple[int, ScoredGroup]], RolloutBatch]:
        """Plan and sample up to k steps ahead, then wait for the scored groups of the step that is trained now.

        Args:
            prompts: of a step, over all ranks.
            first: with k = 0, a step may be asked for more groups; their places count from here.

        Returns:
            This rank's groups as (place in the plan, scored group), in plan order, and the batch that they came with.
        """
        if self._staleness and first:
            raise ValueError("a step that was sampled ahead cannot be given more groups: the weights that sampled it are gone")
        if self._restored is not None:
            path, self._restored = self._restored, None
            self._queue.extend(dist.run_synchronized(lambda: self._restore(path)))
        step = self._stage.state.step
        # not beyond the stage's end: nobody would train on that
        while (ahead := step + len(self._queue)) <= min(step + self._staleness, self._stage.cfg.steps - 1):
            self._depart(ahead, prompts, first)
        flight = self._queue[0]
        assert flight.step == step, f"step {step} is to be trained, and the queue holds step {flight.step}"
        self._land(flight)
        out = self._finish(flight)
        self._queue.popleft()
        return out

    def _depart(self, step: int, prompts: int, first: int) -> None:
        """Plan a step and, with k > 0, sample it from the weights as they are now."""
        engine = self.collector.engine
        for flight in self._queue:
            self._land(flight)  # an engine makes one step at a time, and its weights do not change under a step
        flight = self._plan(step, prompts, first)
        if self._staleness:
            beside = isinstance(engine, DetachedEngine) and engine.beside_training
            # replayed answers are checked under the policy on all ranks (`check_replayed`), and the thread must wait for none
            if beside and not any(dist.gather(flight.collection.replays)):
                flight.sampling = self._thread.submit(flight.collection.sample)
            else:
                self._sample(flight)
        self._queue.append(flight)

    def _plan(self, step: int, prompts: int, first: int) -> Flight:
        """Plan a step's prompts, with what ledger and sampler know now. Places count from `first`. An engine with weights of its own takes
        those of the policy."""
        stage, engine = self._stage, self.collector.engine
        # only when a step is planned: however many updates a step makes, weights are sent once
        if isinstance(engine, DetachedEngine) and engine.version != stage.policy.version:
            with stage.learner.memory.phase("sync"):
                engine.sync()
        with stage.timed_loader(step):
            taken = stage.loader.next_batch(stage.state.ledger, prompts=prompts, rollouts=self.collector.num_generations)
        planned = [(first + place, one) for place, one, _ in taken]
        encoded = [(first + place, prompt) for place, _, prompt in taken]
        # a disk that refuses or a row that changed on one rank ends the run on all, instead of leaving the others to wait
        journal = dist.run_synchronized(lambda: self.journal(step))
        collection = dist.run_synchronized(lambda: self._begin(journal, step, planned, encoded))
        return Flight(step=step, planned=planned, collection=collection)

    def _begin(
        self, journal: Journal, step: int, planned: Sequence[tuple[int, PlannedPrompt]], prompts: Sequence[tuple[int, Prompt]]
    ) -> Collection:
        """Begin to collect a planned step. Lengths are those that the ledger has now: it does not read what later steps write."""
        ledger = self._stage.state.ledger
        return self.collector.begin(
            prompts,
            step=step,
            journal=journal,
            num_generations=[one.num_generations for _, one in planned],
            expected_tokens={one.sample_id: ledger.row(one.sample_id).mean_length or 0.0 for _, one in planned},
        )

    def journal(self, step: int) -> Journal:
        """Open what this rank has generated of a step of the stage."""
        state = self._stage.state
        return Journal(self._journals, state.global_step + step - state.step, dist.rank())

    def _sample(self, flight: Flight) -> None:
        """Generate a planned step now."""
        collection = flight.collection
        self._generating(flight, collection.sample)
        self._stage.clock.add("rollout", collection.out.rollout_seconds)
        flight.sampled = True
        faults.point("rollout.ahead")

    def _land(self, flight: Flight) -> None:
        """Wait for a step that is being sampled in a thread."""
        if flight.sampling is None:
            return
        began = time.perf_counter()
        with self._explained(flight):
            dist.run_synchronized(flight.sampling.result)
        # what training has waited for, and not what the thread took beside it
        self._stage.clock.add("rollout", time.perf_counter() - began)
        flight.sampling, flight.sampled = None, True
        faults.point("rollout.ahead")

    def _finish(self, flight: Flight) -> tuple[list[tuple[int, ScoredGroup]], RolloutBatch]:
        """Wait for the scores of a step; what is not sampled yet is generated now."""
        clock = self._stage.clock
        if flight.sampled:
            collected = dist.run_synchronized(flight.collection.finish)
        else:
            collected = self._generating(flight, flight.collection.finish)
            clock.add("rollout", collected.rollout_seconds)
        clock.add("score", collected.score_seconds)
        return [(place, group) for (place, _), group in zip(flight.planned, collected.groups, strict=True)], collected

    def _generating(self, flight: Flight, work: Callable[[], T]) -> T:
        """Run what generates, on this thread. Ranks meet before and behind it and not within: none asks another for weights, and each
        generates as many tokens as it likes. A service that is down stops every rank, and none waits for one that has gone."""
        stage, collection = self._stage, flight.collection
        engine, settings = self.collector.engine, self.collector.settings

        def checked() -> T:
            out = work()
            if replayed := collection.from_journal():
                check_replayed(stage, replayed, settings.top_p, collection.journal)
            return out

        stage.learner.vision.get_ready(stage.policy)  # needs all ranks, so before they go their own ways
        memory = stage.learner.memory
        with ExitStack() as stack:
            stack.enter_context(self._explained(flight))
            if isinstance(engine, DetachedEngine):
                # the engine has weights of its own, but answers from the journal are checked under the policy's
                stack.enter_context(stage.policy.shards.whole() if any(dist.gather(collection.replays)) else nullcontext())
                with memory.phase("rollout"):
                    return dist.run_synchronized(checked)
            with memory.phase("sync"):  # weights in shards are gathered
                stack.enter_context(engine.ready())
            with memory.phase("rollout"):
                if stage.learner.rehearse_rollout and isinstance(engine, InPlace):
                    dist.run_synchronized(lambda: rehearse(engine, collection))
                    stage.learner.rehearse_rollout = False
                out = dist.run_synchronized(checked)
                self._look_at(engine.probes(settings.temperature))
                return out

    def _look_at(self, probes: Sequence[tuple[Prompt, Rollout]]) -> None:
        """Hold answers of the engine against the trainer's log-probs, before anything else is made of its answers.

        Raises:
            EngineError: they differ by more than `rollout.max_gap.stop`.
        """
        if not probes:
            return
        name, step = self._stage.cfg.name, self._stage.state.step + 1
        for text in self.bounds.check(probe_gaps(self._stage.learner, probes), f"stage '{name}', step {step}, fixed prompts"):
            self.collector.say(f"warning: {name} step {step}: fixed prompts: {text}")

    @contextmanager
    def _explained(self, flight: Flight) -> Iterator[None]:
        """Name the step in the message where numbers are not finite, and say what to do."""
        try:
            yield
        except NumericsError as error:
            where = f"stage '{self._stage.cfg.name}', step {flight.step + 1}"
            raise NumericsError(f"{where}: {error}; {self._where_to_go_on()}") from error

    # ---- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self) -> dict[str, bytes]:
        """Give this rank's file of a checkpoint, once all steps in flight are sampled, with the scores that are there. All ranks call
        this. Without staleness there is none, nor at the end of a stage, which trains none of them.

        Returns:
            File name -> content: plan and journal record of each group.
        """
        if not self._staleness or self._stage.ended:
            return {}
        for flight in self._queue:
            self._land(flight)
            dist.run_synchronized(flight.collection.keep)  # with the scores that have come since
        steps = [
            {
                "step": flight.step,
                "groups": [
                    {"place": place, "planned": dataclasses.asdict(planned), "record": record}
                    for (place, planned), record in zip(flight.planned, flight.collection.records(), strict=True)
                ],
            }
            for flight in self._queue
        ]
        return {IN_FLIGHT.format(rank=dist.rank()): json.dumps(steps, allow_nan=False).encode()}

    def _restore(self, path: Path) -> list[Flight]:
        """Take up the steps in flight that a checkpoint holds. Another number of ranks deals their groups anew."""
        state = self._stage.state
        # of all ranks: the ones that saved them may have been more or fewer than now
        names = fnmatch.filter((entry["path"] for entry in read_sealed(path)["files"]), IN_FLIGHT.format(rank="*"))
        if lost := [name for name in names if not (path / name).is_file()]:
            raise CheckpointError(f"{path / lost[0]}: missing, and steps were in flight; put it back, or delete this checkpoint")
        saved = {name: {item["step"]: item["groups"] for item in json.loads((path / name).read_bytes())} for name in names}
        # fewer than k, or none, where the stage was to end there and has been given more steps
        steps = range(state.step, state.step + min(self._staleness, max((len(held) for held in saved.values()), default=0)))
        if any(list(held) != list(steps) for held in saved.values()):
            raise CheckpointError(
                f"{path}: it does not hold the steps {list(steps)} that were sampled and not trained; choose another run.name"
            )
        out: list[Flight] = []
        for step in steps[: self._stage.cfg.steps - state.step]:
            everything = sorted((group for held in saved.values() for group in held[step]), key=lambda group: group["place"])
            same = len(saved) == dist.world()
            mine = saved[IN_FLIGHT.format(rank=dist.rank())][step] if same else everything[dist.rank() :: dist.world()]
            out.append(self._restored_flight(step, mine))
        return out

    def _restored_flight(self, step: int, groups: Sequence[dict[str, Any]]) -> Flight:
        """Take up one step in flight from its records: nothing is generated.

        Raises:
            CheckpointError: its rows or media are not those that it was sampled for.
        """
        stage, journal = self._stage, self.journal(step)
        planned = [(int(group["place"]), PlannedPrompt(**group["planned"])) for group in groups]
        prompts: list[tuple[int, Prompt]] = []
        for place, one in planned:
            sample_ = stage.loader.samples.get(one.sample_id)
            try:
                if sample_ is None:
                    raise RowError("gone", f"row '{one.sample_id}' is not there")
                prompts.append((place, stage.loader.encoder.encode(sample_, stage.loader.answer_format)))
            except (MediaError, RowError) as error:
                raise CheckpointError(f"{_lost(step)}: {error}; put it back, or choose another run.name") from error
        # answers are read back from the journal alone, and this rank's may lack groups that another rank has sampled
        journal.add_missing(group["record"] for group in groups)
        collection = self._begin(journal, step, planned, prompts)
        changed = collection.missing()
        if changed:
            raise CheckpointError(f"{_lost(step)}: {', '.join(changed)} changed; put the rows back, or choose another run.name")
        collection.sample()  # replays, since nothing is missing, and asks for the scores that are not there
        return Flight(step=step, planned=planned, collection=collection, sampled=True)

    def close(self) -> None:
        """Forget the steps in flight; answers and scores that are being made are waited for."""
        self._thread.shutdown()
        if self._queue and self._stage.ended:
            self.collector.say(
                f"{self._stage.cfg.name}: {len(self._queue)} steps that were sampled ahead are not trained: the stage is over"
            )
        for flight in self._queue:
            flight.collection.close()
        self._queue.clear()


# ---- what is held against the weights ---------------------------------------------------------------------------------


def rehearse(engine: InPlace, collection: Collection) -> None:
    """Let the engine take what the step's largest rollout takes if every answer is as long as it may be, so that too little memory shows
    before answers have been paid for.

    Raises:
        NumericsError: it is too little.
    """
    requests, settings = collection.largest(), collection.collector.settings
    if not requests:
        return
    try:
        engine.rehearse(requests, settings)
    except torch.OutOfMemoryError as error:
        answers = sum(len(request.seeds) for request in requests)
        raise NumericsError(
            f"out of memory where {answers} answers to {len(requests)} prompts are all as long as rollout.max_new_tokens "
            f"({settings.max_new_tokens}); lower that, rollout.max_num_seqs or media.max_pixels, or go on with train.rehearse: false "
            "where answers are known to be shorter"
        ) from error


def _lost(step: int) -> str:
    return f"step {step + 1} was sampled before the checkpoint, from weights that are gone, and cannot be sampled again"


def check_replayed(stage: Stage, groups: Sequence[Group], top_p: float, journal: Journal) -> None:
    """Hold answers of the journal against the weights that are to have sampled them: they must give them the log-probs with which
    they were sampled. Weights or pixels that changed in a way that nobody has seen show here.

    Raises:
        CheckpointError: a group differs by more than rounding (`rollout.replay_gap`).
    """
    assert isinstance(stage.cfg, RolloutStage)
    allowed = stage.cfg.rollout.replay_gap
    if allowed is None:
        allowed = REPLAY_GAP[stage.policy.compute]
    allowed -= math.log(top_p)  # the sampler's log-probs are over the nucleus, whose share is at least top_p
    own = [(n, group, r) for n, group in enumerate(groups) for r in group.rollouts if r.provenance in ("policy", "guided")]
    # under the prompt that was sampled, with its hint: the one that a row trains under may be another
    rows = [Row(index=i, group=n, prompt=group.sampled_under(r), response=r.ids, routes=r.routes) for i, (n, group, r) in enumerate(own)]
    if not rows:
        return
    gaps: dict[str, list[float]] = {}
    for logp_T, (_, group, rollout) in zip(score_rows(stage.learner, rows), own, strict=True):
        sampled_T = torch.tensor(rollout.logprobs)
        gaps.setdefault(group.id, []).extend((logp_T[: len(sampled_T)].cpu() - sampled_T).abs().tolist())
    means = {name: sum(values) / len(values) for name, values in gaps.items()}
    wrong = [f"{name} (mean gap {mean:.3g})" for name, mean in means.items() if not mean <= allowed]  # `not <=`: NaN too
    if wrong:
        raise CheckpointError(
            f"{journal.path}: the answers of {len(wrong)} of {len(means)} groups do not have the log-probs with which they were "
            f"sampled: {', '.join(wrong)}; at most {allowed:.3g} is rounding. Weights, pixels or kernels are not those of the process "
            "that sampled them: put them back, delete this file to sample the step again, or raise rollout.replay_gap"
        )


def probe_gaps(learner: Learner, probes: Sequence[tuple[Prompt, Rollout]]) -> dict[str, float]:
    """Measure how far the log-probs of probes are from the trainer's, under the policy's current weights.

    Returns:
        Means of the metrics of `rollout.mismatch.gaps`.
    """
    rows = [Row(index=n, group=n, prompt=prompt, response=rollout.ids) for n, (prompt, rollout) in enumerate(probes)]
    logp_NT = score_rows(learner, rows)
    sampled_NT = torch.full_like(logp_NT, float("nan"))
    for n, (_, rollout) in enumerate(probes):
        sampled_NT[n, : len(rollout.logprobs)] = torch.tensor(rollout.logprobs)
    found = gaps(logp_NT, sampled_NT, [prompt for prompt, _ in probes])
    return {name: float(number) / float(of) for name, (number, of) in found.items() if of}
