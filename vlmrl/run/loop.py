"""The loop of a stage: a step, then the hooks behind it (`run.hooks`), until the stage is over."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field

from vlmrl.run.hooks import Evaluate, hooks_of
from vlmrl.run.profile import StageProfiler
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.train.memory import Memories
from vlmrl.train.meter import Counters
from vlmrl.train.pipeline import Pipeline
from vlmrl.train.stage.base import Recorder, Stage, StepResult


@dataclass(kw_only=True)
class Loop:
    """A stage that is open, and the run around it."""

    session: Session
    stage: Stage
    memories: Memories
    """What the stage's parts remember."""
    counters: Counters
    """Running counts of what the stage uses, logged with every step."""
    ends: ExitStack = field(default_factory=ExitStack)
    """Closes what was opened for the stage."""
    keeper: Recorder | None = None
    """Keeps groups for `vlmrl view`; none where the recipe keeps none."""
    pipeline: Pipeline | None = None
    """Makes its rollouts, where it has any."""

    def run(self, step: Callable[[], StepResult]) -> None:
        """Call `step` until the stage is over. Background work, reward workers and the profiler end with this, and first of all the
        rollouts that are being made.

        Raises:
            CheckpointError: the checkpoint holds a memory that no part of this stage has.
            VlmrlError: what a step or a hook raises.
        """
        s, stage = self.session, self.stage
        self.memories.complete()
        profiler = profiler_of(s, stage)
        rewards = nullcontext() if stage.rewards is None else closing(stage.rewards.runner)
        with (
            s.ui.bar(f"{stage.cfg.kind} {stage.cfg.name}", stage.cfg.steps, done=stage.state.step) as bar,
            stage.loader.running(),
            profiler or nullcontext(),
            rewards,
            self.ends,
        ):
            hooks = hooks_of(
                s,
                stage,
                memories=self.memories,
                counters=self.counters,
                bar=bar,
                profiler=profiler,
                keeper=self.keeper,
                pipeline=self.pipeline,
            )
            if s.restored is not None and stage.state.step:
                Evaluate(s).go_on(stage)
            while not stage.ended:
                dist.doing(f"stage '{stage.cfg.name}', step {stage.state.step + 1}")
                result = step()
                for hook in hooks:
                    hook(stage, result)
            self._conclude()

    def _conclude(self) -> None:
        """Say whether the score of `until` was reached, and how much of the stage could teach nothing.

        Raises:
            DataError: a reward scored nothing in a short stage.
        """
        say, stage = self.session.ui.say, self.stage
        cfg, state = stage.cfg, stage.state
        if cfg.until is not None:
            say(until_line(cfg.name, cfg.until.score, state.held_out_score, state.step))
        if stage.rewards is None:
            return
        if state.without_signal:
            say(f"warning: {cfg.name}: {state.without_signal} of {state.step} steps had no group with signal")
        stage.rewards.conclude()


def profiler_of(s: Session, stage: Stage) -> StageProfiler | None:
    """Trace the stage's first steps, where the command asks for it."""
    if not s.profile_steps:
        return None
    return StageProfiler(s.run.path / "profile", stage.cfg.name, steps=s.profile_steps, device=s.policy.device, say=s.ui.say)


def until_line(stage: str, wanted: float, score: float | None, step: int) -> str:
    """Tell how a stage with `until` ended."""
    if score is not None and score >= wanted:
        return f"{stage}: held-out score {score:.3f} after {step} steps ({wanted:g} was asked for)"
    seen = "not known" if score is None else f"{score:.3f}"
    return f"warning: {stage}: held-out score {seen} after {step} steps, which are all it has; {wanted:g} was asked for ('until')"
