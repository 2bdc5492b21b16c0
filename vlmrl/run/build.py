"""The package's kinds of stages: each opens what its step needs, and runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vlmrl.algo.registries import group_loss
from vlmrl.config.schema import GrpoSection, SftSection
from vlmrl.config.stages import PreferenceSection
from vlmrl.run.kinds import stage_kind
from vlmrl.run.loop import Loop
from vlmrl.run.open_stage import open_pipeline, open_rollout_stage, open_stage
from vlmrl.run.optional import OPTIONAL
from vlmrl.run.session import Session
from vlmrl.train.stage.algorithm import Algorithm, bind
from vlmrl.train.stage.base import StepResult
from vlmrl.train.stage.grpo import grpo_step
from vlmrl.train.stage.preference import check_pairs, preference_step
from vlmrl.train.stage.sft import check_dropout, sft_step


@stage_kind(SftSection)
def sft(session: Session, cfg: SftSection) -> None:
    """Train on written answers.

    Raises:
        ConfigError: chances of `thought_dropout` that do not fit the rows.
    """
    loop = open_stage(session, cfg)
    check_dropout(loop.stage.loader.samples.values(), cfg)
    loop.run(partial(sft_step, loop.stage, cfg))


@stage_kind(PreferenceSection)
def preference(session: Session, cfg: PreferenceSection) -> None:
    """Train on pairs of a chosen and a rejected answer.

    Raises:
        ConfigError: a row's pair cannot be used, or no row has one.
    """
    loss = bind(group_loss, cfg.group_loss)
    loop = open_stage(session, cfg, reference=True)  # what the loss needs is in the minibatch
    check_pairs(loop.stage, cfg)
    loop.run(partial(preference_step, loop.stage, cfg, loss))


@stage_kind(GrpoSection)
def grpo(session: Session, cfg: GrpoSection) -> None:
    """Train on answers of the policy and their rewards."""
    loop, algorithm = open_grpo(session, cfg)
    run_grpo(loop, cfg, algorithm)


def open_grpo(session: Session, cfg: GrpoSection, *, reference: bool = False, moves: bool = False) -> tuple[Loop, Algorithm]:
    """Open a stage of the GRPO family. `reference`: keep the starting weights, whatever the recipe's methods need; `moves`: to change
    them."""
    algorithm = Algorithm.of(cfg)
    compares = cfg.beta > 0 or cfg.kl_every > 0 or bool(algorithm.acting_on("beta"))
    loop = open_rollout_stage(session, cfg, methods=list(algorithm.methods()), reference=reference or compares, moves=moves)
    return loop, algorithm


def run_grpo(loop: Loop, cfg: GrpoSection, algorithm: Algorithm) -> None:
    """Make the steps of such a stage. What methods beside the defaults change is counted around them."""
    strategy = algorithm.strategy.call()
    algorithm, touched = OPTIONAL["stages.touched"](algorithm, cfg, strategy)
    pipeline = open_pipeline(loop, cfg, strategy)
    step: Callable[[], StepResult] = partial(grpo_step, loop.stage, cfg, algorithm, pipeline, loop.keeper)
    if touched.watched:
        step = loop.memories.keep("touched", touched).around(step)
    loop.run(step)
