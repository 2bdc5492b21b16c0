"""What happens after an update: one hook behind the other, in the order of `hooks_of`, with the reason for each place beside it.

A hook is called once per step, on every rank alike, as `hook(stage, result)`. What it knows of the run it is given when it is made; what
one tells another stands in the `StepResult`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vlmrl import faults
from vlmrl.config.schema import RolloutStage
from vlmrl.errors import NumericsError, Preempted
from vlmrl.protocols import reward as rewards_registry
from vlmrl.rollout.mismatch import Bounds
from vlmrl.run.evaluate import evaluate_stage, held_out_score
from vlmrl.run.listing import last_lines
from vlmrl.run.profile import StageProfiler
from vlmrl.run.rundir import RunDir
from vlmrl.run.saves import save, settle, where_to_go_on
from vlmrl.run.session import Service, Session
from vlmrl.run.ui import ProgressBar, Ui
from vlmrl.train import dist
from vlmrl.train.memory import Memories
from vlmrl.train.meter import AlarmMonitor, Clock, Counters
from vlmrl.train.pipeline import Pipeline
from vlmrl.train.stage.base import Recorder, Stage, StepResult
from vlmrl.train.step import rates

Hook = Callable[[Stage, StepResult], None]

MAX_SKIPPED_STEPS = 3
SHOWN = ("reward", "distill/gap", "loss", "completions/mean_length", "completions/think_rate", "grad_norm")
"""Beside the progress bar."""


def hooks_of(
    s: Session,
    stage: Stage,
    *,
    memories: Memories,
    counters: Counters,
    bar: ProgressBar,
    profiler: StageProfiler | None,
    keeper: Recorder | None,
    pipeline: Pipeline | None,
) -> tuple[Hook, ...]:
    """List the hooks of a stage of a run, in their order."""
    every = stage.cfg.checkpoint_every or s.cfg.checkpoint.every
    hooks: tuple[Hook | None, ...] = (
        # before anything of the step is counted or written: another process may be at work in this directory
        Lock(s.run),
        # before the step counts: one whose answers are another policy's is not done, and must not reach a checkpoint
        None if pipeline is None else GapBounds(pipeline.bounds),
        # likewise: the third step in a row without an update raises while the last checkpoint is still that of finite weights
        SkippedStepCounter(s),
        # from here on the step is done, and everything behind is about a state that says so
        count,
        # before the log: whoever reads of a step there finds its groups
        None if keeper is None else KeepGroups(keeper),
        # before whatever takes long, so that a run that dies there has logged what it knew; a resumed one cuts the line off
        log_hook(s, stage, counters),
        # behind the log: an alarm is about numbers that can be looked up
        Alarms(s.ui),
        Progress(bar),
        # the line has the seconds until now; those of the hooks behind belong to the next one
        next_clock,
        # directly behind the step, whose operations it records: none of an evaluation or a checkpoint
        None if profiler is None else Profile(profiler),
        # before the checkpoint: a run that is killed in between repeats the step and finds these records; the other way round it
        # would go on behind the step and never ask
        Evaluate(s),
        # before the checkpoint, which holds the score, and before anybody asks whether the stage is over
        Until(s),
        # once for all hooks behind, which must not disagree
        AskToStop(s.run),
        Checkpoint(s, memories, every, keeper=keeper, pipeline=pipeline),
        # behind the checkpoint that it may have to wait for
        None if s.background is None else Settle(s),
        # behind the checkpoint, whose weights are uploaded
        None if s.publisher is None else s.publisher.checkpoint(s, every),
        # last: everything is saved
        stop,
    )
    return tuple(hook for hook in hooks if hook is not None)


@dataclass(frozen=True)
class Lock:
    """Refuses to go on in a directory that another process may be using.

    Raises (when called):
        RunBusyError: the run's directory or its lock was replaced; nothing more is written.
    """

    run: RunDir

    def __call__(self, stage: Stage, result: StepResult) -> None:
        dist.on_main(self.run.still_ours)


@dataclass(frozen=True)
class GapBounds:
    """Holds the gap between the log-probs of sampler and trainer against its bounds.

    Raises (when called):
        EngineError: the sampler's log-probs are not the trainer's (`rollout.max_gap.stop`).
    """

    bounds: Bounds

    def __call__(self, stage: Stage, result: StepResult) -> None:
        result.warnings += self.bounds.check(result.values, f"stage '{stage.cfg.name}', step {stage.state.step + 1}")


@dataclass(frozen=True)
class SkippedStepCounter:
    """Counts steps whose update was refused since it was not finite.

    Raises (when called):
        NumericsError: several in a row were.
    """

    session: Session

    def __call__(self, stage: Stage, result: StepResult) -> None:
        state, report = stage.state, result.report
        state.skipped_in_row = 0 if report.applied else state.skipped_in_row + 1
        if state.skipped_in_row >= MAX_SKIPPED_STEPS:
            raise NumericsError(
                f"stage '{stage.cfg.name}': loss or gradient was not finite {MAX_SKIPPED_STEPS} steps in a row (last: loss {report.loss}, "
                f"gradient norm {report.grad_norm}), so none of these updates was made; {where_to_go_on(self.session)}"
            )


def count(stage: Stage, result: StepResult) -> None:
    """Count the step in the run's state."""
    state = stage.state
    state.step += 1
    state.global_step += 1
    state.policy_version = stage.policy.version
    state.max_tokens_per_microbatch = stage.learner.max_tokens_per_microbatch
    state.without_signal += int(result.values.get("groups_with_signal") == 0.0)


@dataclass(frozen=True)
class KeepGroups:
    """Hands the groups that the step chose for `vlmrl view` to the thread that writes them."""

    keeper: Recorder

    def __call__(self, stage: Stage, result: StepResult) -> None:
        self.keeper.write()


@dataclass(frozen=True, kw_only=True)
class Log:
    """Writes the step's line of metrics: what it measured, then what it cost.

    Args:
        log: `Tracker.log`: a line under the names of stage and step.
        once: what the process logs with its next step and then never again.
        services: what rewards ask, which says what it has cost; none where no reward of the stage asks one.
    """

    log: Callable[..., None]
    counters: Counters
    once: dict[str, Callable[[], float]] = field(default_factory=dict[str, Callable[[], float]])
    services: Sequence[Service] = ()

    def __call__(self, stage: Stage, result: StepResult) -> None:
        faults.point("step.after_update")
        report, learner = result.report, stage.learner
        line = result.values | {"grad_norm": report.grad_norm, "step/skipped": float(not report.applied)} | rates(learner.updates.optimizer)
        result.line = line | stage.tokens.read(report.tokens)
        once = {name: read() for name, read in self.once.items()}
        self.once.clear()
        cost = {name: value for service in self.services for name, value in service.read().items()}
        logged = result.line | self.counters.read() | learner.memory.metrics() | stage.clock.metrics() | once | cost
        self.log(logged, stage=stage.cfg.name, step=stage.state.step, global_step=stage.state.global_step)


def log_hook(s: Session, stage: Stage, counters: Counters) -> Log:
    """Make the log of a run's stage. Only one that generates says when the first answers were trained, and what judges cost."""
    cfg = stage.cfg
    if not isinstance(cfg, RolloutStage):
        return Log(log=s.tracker.log, counters=counters)
    asks = any(rewards_registry.get(reward.name).extra.get("service", False) for reward in cfg.rewards)
    return Log(log=s.tracker.log, counters=counters, once=s.first_rl_step, services=s.services if asks else ())


def counters_of(stage: Stage) -> Counters:
    """Make the counts of media and features that the log reads."""
    store, prefetcher = stage.store, stage.loader.prefetcher
    reference = stage.learner.vision if stage.reference is None else stage.reference.vision
    caches = list({id(cache): cache for cache in (stage.learner.vision, reference)}.values())
    return Counters(
        {
            "work/vision_patches": lambda: sum(cache.patches_encoded for cache in caches),
            "work/media_decoded": lambda: store.stats["decoded"],
            "cache/media_hits": lambda: store.stats["cache_hits"],
            "cache/media_prefetched": lambda: 0 if prefetcher is None else prefetcher.fetched,
            "cache/vision_hits": lambda: sum(cache.hits for cache in caches),
            "cache/vision_disk_hits": lambda: sum(cache.disk_hits for cache in caches),
        }
    )


@dataclass(frozen=True)
class Alarms:
    """Says what is wrong with the step, and with the last ones together."""

    ui: Ui
    watch: AlarmMonitor = field(default_factory=AlarmMonitor)

    def __call__(self, stage: Stage, result: StepResult) -> None:
        for text in [*result.warnings, *self.watch.see(result.line)]:
            self.ui.say(f"warning: {stage.cfg.name} step {stage.state.step}: {text}")


@dataclass(frozen=True)
class Progress:
    """Moves the progress bar."""

    bar: ProgressBar

    def __call__(self, stage: Stage, result: StepResult) -> None:
        self.bar.update(stage.state.step, {key.split("/")[-1]: result.line[key] for key in SHOWN if key in result.line})


def next_clock(stage: Stage, result: StepResult) -> None:
    """Start the clock of the next line."""
    faults.point("step.after_log")
    stage.clock = Clock()


@dataclass(frozen=True)
class Profile:
    """Ends a step of the trace (`vlmrl train --profile`)."""

    profiler: StageProfiler

    def __call__(self, stage: Stage, result: StepResult) -> None:
        with stage.clock.phase("profile"):
            self.profiler.after_step()


@dataclass(frozen=True)
class Evaluate:
    """Asks the held-out questions every `eval.every` steps. The end of the stage has an evaluation of its own."""

    session: Session

    def __call__(self, stage: Stage, result: StepResult | None = None) -> None:
        s, step, every = self.session, stage.state.step, self.session.cfg.eval.every
        if every and step % every == 0 and step < stage.cfg.steps:
            evaluate_stage(s, f"{stage.cfg.name}@{step}", stage.policy, s.vision, stage.clock)

    def go_on(self, stage: Stage) -> None:
        """Ask at the step that a run goes on from, if nobody did: the stage was to end there, and has been given more steps."""
        name, metrics = f"{stage.cfg.name}@{stage.state.step}", self.session.run.metrics
        if not dist.gather(dist.on_main(lambda: any(line["stage"] == name for line in last_lines(metrics))))[0]:
            self(stage)


@dataclass(frozen=True)
class Until:
    """Asks the rows of a stage's `until`, where it is time to."""

    session: Session

    def __call__(self, stage: Stage, result: StepResult) -> None:
        s, cfg, state = self.session, stage.cfg, stage.state
        if cfg.until is None or (state.step % cfg.until.every and state.step < cfg.steps):
            return
        with stage.clock.phase("evaluate"):
            state.held_out_score = held_out_score(s, cfg, cfg.until, stage.policy)
        s.tracker.log({"until/score": state.held_out_score}, stage=cfg.name, step=state.step, global_step=state.global_step)


@dataclass(frozen=True)
class AskToStop:
    """Asks every rank whether a signal has come."""

    run: RunDir

    def __call__(self, stage: Stage, result: StepResult) -> None:
        result.stop = any(dist.gather(self.run.stop_requested))


@dataclass(frozen=True)
class Checkpoint:
    """Saves the run every few steps, at the stage's end and before it stops."""

    session: Session
    memories: Memories
    every: int
    keeper: Recorder | None = None
    pipeline: Pipeline | None = None

    def __call__(self, stage: Stage, result: StepResult) -> None:
        if not (stage.state.step % self.every == 0 or stage.ended or result.stop):
            return
        with stage.clock.phase("checkpoint"):
            if self.keeper is not None:
                self.keeper.settle()  # a resumed run lacks no group of the steps before it
            save(self.session, stage.learner, self.memories, self.pipeline)


@dataclass(frozen=True)
class Settle:
    """Sees to a checkpoint that is written in the background: to what is done, and at the end to all of it."""

    session: Session

    def __call__(self, stage: Stage, result: StepResult) -> None:
        with stage.clock.phase("checkpoint"):
            settle(self.session, wait=result.stop or stage.ended)


def stop(stage: Stage, result: StepResult) -> None:
    """End the process where a signal asked for it.

    Raises:
        Preempted: it did; the state has been saved.
    """
    if result.stop and not stage.ended:
        where = f"step {stage.state.step} of stage '{stage.cfg.name}'"
        raise Preempted(f"stopped by a signal after {where}; saved, run the same command to go on")
