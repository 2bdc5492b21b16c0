"""What the stages share: the run's parts in one place, and what happens after an update (count, log, save, stop)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import torch

from vlmrl import faults
from vlmrl.algo import segments
from vlmrl.algo.inputs import LossInputs
from vlmrl.config.schema import RolloutSection, RolloutStage, StageBase
from vlmrl.errors import NumericsError, Preempted
from vlmrl.media.store import MediaStore
from vlmrl.policy.model import Policy
from vlmrl.policy.pack import Row
from vlmrl.policy.vision import VisionCache
from vlmrl.protocols import RememberingStrategy, RewardContext, RolloutEngine, Strategy
from vlmrl.rewards.run.runner import MediaOnDemand, RewardRunner
from vlmrl.rollout.collect import Collected, Collector
from vlmrl.rollout.journal import Journal
from vlmrl.rollout.mismatch import Bounds
from vlmrl.sampling.ledger import distinct_n
from vlmrl.train import dist
from vlmrl.train.loader import PromptLoader
from vlmrl.train.memory import Memories
from vlmrl.train.meter import Clock, Counters, Tokens, Watch
from vlmrl.train.pipeline import finish, plan
from vlmrl.train.profile import StageProfiler
from vlmrl.train.stage.algorithm import Batch, Bound
from vlmrl.train.stage.engines import bounds_of, probe_gaps
from vlmrl.train.stage.provide import Providers
from vlmrl.train.stage.table import RewardTable, label_key
from vlmrl.train.state import RunState
from vlmrl.train.step import Learner, Minibatch, StepReport, learning_rate, rates, score_rows, set_rates
from vlmrl.train.ui import Bar, Ui
from vlmrl.types import GenerationSettings, Group, Prompt, Rollout, ScoredGroup

MAX_SKIPPED_STEPS = 3
SILENT_STEPS = 50
"""Steps in which a reward must score something; a shorter stage is asked at its end."""
SHOWN = ("reward", "loss", "completions/mean_length", "completions/think_rate", "grad_norm")
"""Beside the progress bar."""


def until_line(stage: str, wanted: float, score: float | None, step: int) -> str:
    """What is said of a stage with `until` when it ends."""
    if score is not None and score >= wanted:
        return f"{stage}: held-out score {score:.3f} after {step} steps ({wanted:g} was asked for)"
    seen = "not known" if score is None else f"{score:.3f}"
    return f"warning: {stage}: held-out score {seen} after {step} steps, which are all it has; {wanted:g} was asked for ('until')"


def ended(cfg: StageBase, step: int, held_out_score: float | None) -> bool:
    """Whether a stage has made its steps, or its held-out rows are answered well enough (`until`)."""
    reached = cfg.until is not None and held_out_score is not None and held_out_score >= cfg.until.score
    return step >= cfg.steps or reached


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The stage's starting weights, frozen, with features of their own where the tower trains."""

    policy: Policy
    """A second model, or with adapters the view of the trained one without them (`Policy.without_adapters`)."""
    vision: VisionCache


class GroupKeeper(Protocol):
    """What a stage asks of `train.keep.Keeper`."""

    def choose(self, batch: Batch, adv_NT: torch.Tensor, adv_N: torch.Tensor, *, step: int, global_step: int) -> None: ...

    def see(self, rows: Sequence[Row], x: LossInputs) -> None: ...

    def write(self) -> None: ...

    def settle(self) -> None: ...


@dataclass(kw_only=True)
class StageRun:
    """A stage that is running. Everything that must survive is in `state` and `memories`."""

    cfg: StageBase
    seed: int
    state: RunState
    policy: Policy
    learner: Learner
    loader: PromptLoader
    store: MediaStore
    rewards: RewardRunner | None
    reference: Reference | None
    journal_dir: Path
    checkpoint_every: int
    log: Callable[..., None]
    """`Tracker.log`: a line of metrics under the names of stage and step."""
    save: Callable[[], None]
    beside: list[Callable[[], Mapping[str, bytes]]] = field(default_factory=list["Callable[[], Mapping[str, bytes]]"])
    """Give the files that this rank alone writes into a checkpoint, by name; called on every rank."""
    stop_requested: Callable[[], bool]
    settle: Callable[..., None] | None = None
    """Sees to a checkpoint that is written in the background: at every step to what is done, with `wait` to its end."""
    where_to_go_on: Callable[[], str] = lambda: "start again from finite weights"
    """Said where numbers are not finite: which weights are not, and the last good checkpoint."""
    accept_changed: bool = False
    """Whether rows and media may have changed since the run began (`data.changed`)."""
    still_ours: Callable[[], None] = lambda: None
    """Raises where another process may be using the run's directory; asked on rank 0 before anything of a step is written."""
    evaluate: Callable[[Clock], None] | None = None
    """Asks the held-out questions, where it is due within the stage (`evaluate_every`)."""
    evaluate_every: int | None = None
    memories: Memories = field(default_factory=Memories)
    """What the stage's parts remember."""
    providers: Providers = field(default_factory=Providers)
    """Who fetches what the recipe's methods need."""
    held_out: Callable[[], float] | None = None
    """Score of the held-out rows of `cfg.until`."""
    profiler: StageProfiler | None = None
    ui: Ui = field(default_factory=lambda: Ui(quiet=True))
    once: dict[str, Callable[[], float]] = field(default_factory=dict[str, Callable[[], float]])
    """What the process logs with the next step and then never again."""
    read_services: Callable[[], dict[str, float]] | None = None
    """What services of rewards have cost since the last call; None where no reward asks one."""
    watch: Watch = field(default_factory=Watch)
    """Alarms about what is logged (`train.meter`)."""
    make_engine: Callable[[RolloutSection], RolloutEngine]
    """What generates, for a stage that does (`train.stage.engines`)."""
    make_collector: Callable[[StageRun, RolloutStage, RolloutEngine, Strategy], Callable[..., Collector]]
    """What collects its rollouts (`train.stage.world`)."""
    keeper: GroupKeeper | None = None
    """Keeps groups for `vlmrl view`; none where the recipe keeps none."""
    ends: ExitStack = field(default_factory=ExitStack)
    """Closes what was opened for the stage, when its loop ends."""
    gap_bounds: Bounds = field(default_factory=Bounds)
    """On the gap between the log-probs of sampler and trainer."""
    clock: Clock = field(default_factory=Clock)
    """Runs from one log line to the next, so that no second of the loop is outside it."""
    tokens: Tokens = field(default_factory=Tokens)
    counters: Counters = field(init=False)
    _bar: Bar | None = None

    def __post_init__(self) -> None:
        reference = self.reference.vision if self.reference is not None else self.learner.vision
        caches = list({id(cache): cache for cache in (self.learner.vision, reference)}.values())
        prefetcher = self.loader.prefetcher
        self.counters = Counters(
            {
                "work/vision_patches": lambda: sum(cache.patches_encoded for cache in caches),
                "work/media_decoded": lambda: self.store.stats["decoded"],
                "cache/media_hits": lambda: self.store.stats["cache_hits"],
                "cache/media_prefetched": lambda: 0 if prefetcher is None else prefetcher.fetched,
                "cache/vision_hits": lambda: sum(cache.hits for cache in caches),
                "cache/vision_disk_hits": lambda: sum(cache.disk_hits for cache in caches),
            }
        )

    @cached_property
    def label_key(self) -> str | None:
        """What the think rate is told apart by."""
        return label_key(self.loader.samples.values())

    def loop(self, step: Callable[[], None], *, within: AbstractContextManager[object] | None = None) -> None:
        """Call `step`, which ends with `after_update`, until the stage's steps are done. Background work, reward workers and the profiler
        end with this, and first of all what `within` closes."""
        self.memories.complete()
        ended = closing(self.rewards) if self.rewards else nullcontext()
        bar = self.ui.bar(f"{self.cfg.kind} {self.cfg.name}", self.cfg.steps, done=self.state.step)
        with bar as self._bar, self.loader.running(), self.profiler or nullcontext(), ended, self.ends, within or nullcontext():
            while not self.ended:
                dist.doing(f"stage '{self.cfg.name}', step {self.state.step + 1}")
                step()
            self._conclude()

    @property
    def ended(self) -> bool:
        """Whether the stage is over."""
        return ended(self.cfg, self.state.step, self.state.held_out_score)

    def _look(self) -> None:
        """Ask the rows of `until`, where it is time to."""
        until, state = self.cfg.until, self.state
        if until is None or self.held_out is None or (state.step % until.every and state.step < self.cfg.steps):
            return
        with self.clock.phase("evaluate"):
            state.held_out_score = self.held_out()
        self.log({"until/score": state.held_out_score}, stage=self.cfg.name, step=state.step, global_step=state.global_step)

    def _conclude(self) -> None:
        """Say whether the score of `until` was reached, and how much of the stage could teach nothing.

        Raises:
            DataError: a reward scored nothing in a stage of fewer than `SILENT_STEPS` steps.
        """
        cfg, state = self.cfg, self.state
        if cfg.until is not None:
            self.ui.say(until_line(cfg.name, cfg.until.score, state.held_out_score, state.step))
        if self.rewards is None:
            return
        if state.without_signal:
            self.ui.say(f"warning: {cfg.name}: {state.without_signal} of {state.step} steps had no group with signal")
        self.rewards.require_verdicts(state.verdicts, state.step)

    def count(self, rows: Sequence[Row]) -> None:
        """Count the tokens of a minibatch that this rank has trained on."""
        self.tokens.add(rows, self.learner.max_tokens_per_microbatch, layout=self.learner.layout)

    @contextmanager
    def timed_loader(self, clock: Clock, step: int | None = None) -> Iterator[None]:
        """Time a block as `decode` (what this thread waited for media) and `encode` (the rest); then the media of the step behind
        `step` (the current one, if not given) are fetched in the background."""
        began, waited = time.perf_counter(), self.store.waited()
        yield
        decode = self.store.waited() - waited
        clock.add("decode", decode)
        clock.add("encode", time.perf_counter() - began - decode)
        if self.loader.prefetcher is not None and (self.state.step if step is None else step) + 1 < self.cfg.steps:
            with clock.phase("prefetch"):
                self.loader.prefetch(self.state.ledger)

    def set_rate(self) -> None:
        """Learning rates of the coming update."""
        o = self.cfg.optim
        shape = partial(learning_rate, self.state.step, self.cfg.steps, schedule=o.schedule, warmup=o.warmup)
        set_rates(self.learner.updates.optimizer, o, lambda peak: shape(peak=peak))

    def collector(self, cfg: RolloutStage, strategy: Strategy) -> Collector:
        """Engine, strategy and scoring of a stage that generates."""
        assert self.rewards is not None
        bundle, rollout = self.policy.bundle, cfg.rollout
        engine = self.make_engine(rollout)
        for name, count in engine.counts.items():
            self.counters.add(name, count)
        self.gap_bounds = bounds_of(rollout)
        if isinstance(strategy, RememberingStrategy):
            self.memories.keep("strategy", strategy)
        return self.make_collector(self, cfg, engine, strategy)(
            engine=engine,
            strategy=strategy,
            score=self.score,
            tokenize=lambda text: (*bundle.tokenize(text), bundle.end_ids[0]),
            settings=GenerationSettings(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature, top_p=rollout.top_p),
            num_generations=rollout.num_generations,
            generation_batch_size=rollout.generation_batch_size,
            seed=self.seed,
            stage=cfg.name,
            accept_changed=self.accept_changed,
            say=self.ui.say,
        )

    def journal(self, step: int | None = None) -> Journal:
        """What this rank has generated of a step of the stage: of the current one, or of one ahead of it."""
        ahead = 0 if step is None else step - self.state.step
        return Journal(self.journal_dir, self.state.global_step + ahead, dist.rank())

    def roll_out(
        self, collector: Collector, journal: Journal, *, prompts: int, first: int = 0
    ) -> tuple[list[tuple[int, ScoredGroup]], Collected]:
        """Plan prompts, generate and score their groups: (place in the plan, group) of this rank. Places count from `first`."""
        return finish(self, plan(self, collector, step=self.state.step, prompts=prompts, first=first, journal=journal))

    def look_at(self, probes: Sequence[tuple[Prompt, Rollout]]) -> None:
        """Hold answers of the engine against the trainer's log-probs, before anything else is made of its answers.

        Raises:
            EngineError: they differ by more than `rollout.max_gap.stop`.
        """
        if probes:
            found = probe_gaps(self.learner, probes)
            for text in self.gap_bounds.check(found, f"stage '{self.cfg.name}', step {self.state.step + 1}, fixed prompts"):
                self.ui.say(f"warning: {self.cfg.name} step {self.state.step + 1}: fixed prompts: {text}")

    def provide(self, batch: Batch, methods: Iterable[Bound]) -> RewardTable:
        """The batch's table with what these methods need."""
        if not self.providers.used:
            return batch.table
        needs = [name for method in methods for name in method.needs]
        return dataclasses.replace(batch.table, inputs=self.providers.of_rollouts(self, batch, needs))

    def provide_minibatch(self, batch: Minibatch) -> Minibatch:
        """The minibatch with what the stage's methods need."""
        if not self.providers.used:
            return batch
        return dataclasses.replace(batch, fields={**batch.fields, **self.providers.of_minibatch(self, batch)})

    def weights_changed(self) -> None:
        """Tell what providers keep that an update was applied."""
        for keeper in self.providers.keepers.values():
            keeper.after_update()

    def remember(self, strategy: Strategy, batch: Batch, adv_N: torch.Tensor) -> None:
        """Tell a strategy with a memory what the step brought, on every rank alike."""
        if not isinstance(strategy, RememberingStrategy):
            return
        x = batch.table.inputs
        worth_N = segments.mean(adv_N.abs(), x.group_N, x.valid_N & x.on_policy_N)
        by_place = dict(zip(x.group_N.tolist(), worth_N.tolist(), strict=True))
        everyone = sorted((item for of_rank in dist.gather(batch.groups) for item in of_rank), key=lambda item: item[0])
        groups = [scored for _, scored in everyone]
        strategy.observe(groups, [by_place[place] for place, _ in everyone], version=self.policy.version + 1)

    def score(self, group: Group, step: int) -> ScoredGroup:
        """A group of a step with its rewards."""
        assert self.rewards is not None
        # what the policy saw, for rewards that look: nothing is opened a second time
        media = MediaOnDemand(tuple(handle.key for handle in group.prompt.media), self.store.get_key)
        with self.learner.memory.phase("reward"):
            return self.rewards.score(group, RewardContext(progress=step / self.cfg.steps, media=media))

    def observe(self, groups: Sequence[tuple[int, ScoredGroup]]) -> None:
        """Write the step's on-policy rewards and lengths of all ranks into the ledger, in plan order, and watch reward faults.
        `groups`: (place in the plan, group) of this rank, as `roll_out` gives them."""
        assert self.rewards is not None
        self._watch_rewards([scored for _, scored in groups])
        seen: list[tuple[int, str, list[float], list[int], float | None]] = []
        for place, scored in groups:
            pairs = [(value, length) for value, length in scored.outcomes() if value is not None]
            answers = [rollout.ids for rollout in scored.group.rollouts if rollout.on_policy]
            sample_id, values, lengths = scored.group.prompt.sample.id, [v for v, _ in pairs], [n for _, n in pairs]
            seen.append((place, sample_id, values, lengths, distinct_n(answers)))
        for _, sample_id, values, lengths, diversity in sorted((i for of_rank in dist.gather(seen) for i in of_rank), key=lambda i: i[0]):
            if values:
                self.state.ledger.observe(sample_id, rewards=values, lengths=lengths, step=self.state.global_step, diversity=diversity)

    def _watch_rewards(self, groups: Sequence[ScoredGroup]) -> None:
        assert self.rewards is not None
        counts: dict[str, list[int]] = {name: [0, 0, 0] for name, _, _ in self.rewards.columns}
        for scored in groups:
            if not scored.group.rollouts:  # a task none of whose attempts is whole
                continue
            for name, column in zip(scored.scores.columns, zip(*scored.scores.rewards_GK, strict=True), strict=True):
                counts[name][1] += len(column)
                counts[name][2] += sum(value is not None for value in column)
            for reason, n in scored.scores.reasons.items():
                counts[reason.split("/")[0]][0] += n
        merged: dict[str, list[int]] = {}
        for of_rank in dist.gather(counts):
            for name, added in of_rank.items():
                merged[name] = [a + b for a, b in zip(merged.get(name, [0, 0, 0]), added, strict=True)]
        self.rewards.observe({name: [failed, total] for name, (failed, total, _) in merged.items()})
        verdicts = self.state.verdicts
        self.state.verdicts = {name: verdicts.get(name, 0) + judged for name, (_, _, judged) in merged.items()}
        if self.state.step + 1 == SILENT_STEPS:
            self.rewards.require_verdicts(self.state.verdicts, SILENT_STEPS)

    def score_reference(self, rows: Sequence[Row]) -> torch.Tensor:
        """Log-probs of rows under the stage's starting weights, [N, T]."""
        assert self.reference is not None
        return score_rows(self.learner, rows, policy=self.reference.policy, vision=self.reference.vision)

    def after_update(self, report: StepReport, values: dict[str, float]) -> None:
        """Count the step, log it, save when due, stop when asked to.

        Raises:
            NumericsError: several updates in a row were refused.
            Preempted: a signal asked to stop; the state has been saved.
            EngineError: the sampler's log-probs are not the trainer's (`rollout.max_gap.stop`); nothing of the step is counted or saved.
            RunBusyError: the run's directory or its lock was replaced; nothing more is written.
        """
        state, cfg = self.state, self.cfg
        dist.on_main(self.still_ours)
        apart = self.gap_bounds.check(values, f"stage '{cfg.name}', step {state.step + 1}")
        state.skipped_in_row = 0 if report.applied else state.skipped_in_row + 1
        if state.skipped_in_row >= MAX_SKIPPED_STEPS:
            raise NumericsError(
                f"stage '{cfg.name}': loss or gradient was not finite {MAX_SKIPPED_STEPS} steps in a row (last: loss {report.loss}, "
                f"gradient norm {report.grad_norm}), so none of these updates was made; {self.where_to_go_on()}"
            )
        state.step += 1
        state.global_step += 1
        state.policy_version = self.policy.version
        state.max_tokens_per_microbatch = self.learner.max_tokens_per_microbatch
        state.without_signal += int(values.get("groups_with_signal") == 0.0)
        if self.keeper is not None:
            self.keeper.write()
        faults.point("step.after_update")
        line = values | {"grad_norm": report.grad_norm, "step/skipped": float(not report.applied)} | rates(self.learner.updates.optimizer)
        line |= self.tokens.read(report.tokens)
        once = {name: read() for name, read in self.once.items()}
        self.once.clear()
        services = {} if self.read_services is None else self.read_services()
        logged = line | self.counters.read() | self.learner.memory.metrics() | self.clock.metrics() | once | services
        self.log(logged, stage=cfg.name, step=state.step, global_step=state.global_step)
        for text in [*apart, *self.watch.see(line)]:
            self.ui.say(f"warning: {cfg.name} step {state.step}: {text}")
        if self._bar is not None:
            self._bar.update(state.step, {key.split("/")[-1]: line[key] for key in SHOWN if key in line})
        faults.point("step.after_log")
        self.clock = Clock()
        if self.profiler is not None:
            with self.clock.phase("profile"):
                self.profiler.after_step()
        # before the checkpoint: a run that is killed in between repeats the step and finds these records; the other way round it
        # would go on behind the step and never ask. The end of the stage has an evaluation of its own.
        if self.evaluate is not None and self.evaluate_every and state.step % self.evaluate_every == 0 and state.step < self.cfg.steps:
            self.evaluate(self.clock)
        self._look()
        due = state.step % self.checkpoint_every == 0 or self.ended
        stop = any(dist.gather(self.stop_requested()))
        if due or stop:
            with self.clock.phase("checkpoint"):
                if self.keeper is not None:
                    self.keeper.settle()
                self.save()
        if self.settle is not None:
            with self.clock.phase("checkpoint"):
                self.settle(wait=stop or self.ended)
        if stop and not self.ended:
            raise Preempted(f"stopped by a signal after step {state.step} of stage '{cfg.name}'; saved, run the same command to go on")
