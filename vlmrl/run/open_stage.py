"""A stage's parts made from the session, restored where the run resumes inside the stage, and saved: what every kind of stage shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

import torch

from vlmrl import faults, rng
from vlmrl.config.schema import Method, RolloutStage, StageBase
from vlmrl.config.section import default
from vlmrl.errors import ConfigError
from vlmrl.policy import flex
from vlmrl.policy.attention import require
from vlmrl.policy.foreign import foreign
from vlmrl.policy.load import freeze
from vlmrl.policy.lora import add_adapters
from vlmrl.policy.model import LoraSpec, Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.protocols import RememberingStrategy, Strategy
from vlmrl.protocols import budget as budgets
from vlmrl.protocols import sampler as samplers
from vlmrl.registry import Catalogue
from vlmrl.rewards.run.here import here_notes
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.run.collector import open_collector
from vlmrl.run.columns import reward_problems, reward_runner
from vlmrl.run.engines import bounds_of, open_engine
from vlmrl.run.hooks import counters_of
from vlmrl.run.loop import Loop
from vlmrl.run.optional import OPTIONAL
from vlmrl.run.rows import quarantine_row
from vlmrl.run.saves import where_to_go_on
from vlmrl.run.session import Session
from vlmrl.sampling.info import describe
from vlmrl.train import dist
from vlmrl.train.loader import PromptLoader, cost_of
from vlmrl.train.memory import FILE as MEMORIES
from vlmrl.train.memory import Memories
from vlmrl.train.memory_ledger import MemoryLedger, gauge_of
from vlmrl.train.pipeline import Pipeline
from vlmrl.train.prefetch import Prefetcher
from vlmrl.train.stage import providers  # noqa: F401 (registers the package's providers)
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Recorder, Reference, Stage
from vlmrl.train.stage.provide import Providers
from vlmrl.train.stage.rewards import Rewards
from vlmrl.train.step import Learner
from vlmrl.train.tensors import read_tensors
from vlmrl.train.updates import Updates
from vlmrl.types import Sample

FORECASTS: Catalogue[Callable[[MemoryLedger, Session, StageBase], None]] = Catalogue("forecast of memory")
"""What says beforehand how much memory the phases of a stage take. All that are there tell a stage's ledger; a run goes without any."""


def open_stage(
    s: Session,
    cfg: StageBase,
    *,
    methods: Sequence[Bound] = (),
    reference: bool = False,
    moves: bool = False,
    sampler: Method | None = None,
    budget: Method | None = None,
    rewards: RewardRunner | None = None,
    temperature: float = 1.0,
    forbidden: tuple[int, ...] = (),
) -> Loop:
    """Rows, learner, prompt loader and memories of a stage, restored if this process resumes inside it, and the loop of its steps.

    Args:
        methods: what the stage applies: their memories are kept and what they need is provided.
        reference: keep the starting weights as a second model, also if no method asks for them.
        moves: keep them as exact as those that train, since they will move.
        sampler, budget: which rows come next and how many rollouts each gets; None: the default sampler, as many for each.
    """
    faults.point("stage.started")
    rows = s.rows_of(cfg.source, cfg.answer_format)
    if cfg.forward != "repeat" and s.policy.subject is None:
        require(s.policy.model.config.get_text_config())
    s.begin_stage(_adapters_of(s, cfg))
    policy = s.policy
    named = freeze(policy, cfg.frozen)
    learner = _learner(s, cfg, named, s.engine.updates(policy, named, cfg.optim), temperature, forbidden)
    memories = _memories(s)
    make_sampler = sampler_maker(s, cfg, sampler or default("sampler"), rows.samples)
    kept = memories.keep("sampler", make_sampler())
    _keep(memories, rewards, methods)
    resumed = s.restored if s.state.step > 0 else None
    with s.clock.phase("load"):
        learner.updates.start(resumed)
    policy.vision_version += int(resumed is not None)
    used = Providers.of(methods)
    learner.entropy_gradient = any("entropy_BT" in method.needs for method in methods)
    learner.stats = used.stats_of("BT")
    compares = reference or used.reference or any("logp_ref_BT" in method.needs for method in methods)
    stage = Stage(
        cfg=cfg,
        seed=s.cfg.run.seed,
        state=s.state,
        learner=learner,
        loader=_loader(s, cfg, kept, budget, make_sampler),
        store=s.store,
        reference=_reference(s, moves=moves or used.moves) if compares else None,
        providers=used,
        rewards=None if rewards is None else Rewards(runner=rewards, store=s.store, state=s.state, steps=cfg.steps, memory=learner.memory),
    )
    used.start(stage, memories)
    loop = Loop(session=s, stage=stage, memories=memories, counters=counters_of(stage))
    if dist.is_main():
        loop.ends.callback(learner.memory.remember, s.cfg.run.name, s.ui.say)
    return loop


def warm_up(policy: Policy) -> None:
    """Compile what is compiled, on rank 0 first: the others of its machine then find it in the cache, and no rank waits in the middle of a
    pass for one that compiles."""
    if policy.subject is not None or policy.prefix_backend != "flex" or policy.device.type not in flex.COMPILED:
        return
    compiled = partial(flex.warm_up, policy.model.config.get_text_config(), compute=policy.compute, device=policy.device)
    dist.on_main(compiled)
    dist.run_synchronized(compiled)


def _keep(memories: Memories, rewards: RewardRunner | None, methods: Sequence[Bound]) -> None:
    """What rewards and methods remember."""
    if rewards is not None:
        memories.keep("rewards", rewards)
    for method in methods:
        if method.remembers:
            memories.keep(f"{method.slot}.{method.name}", method.memory)


def open_rollout_stage(
    s: Session, cfg: RolloutStage, *, methods: Sequence[Bound] = (), reference: bool = False, moves: bool = False
) -> Loop:
    """`open_stage` for a stage that generates and scores answers, with what its section says of that."""
    rewards = _rewards(s, cfg)
    loop = open_stage(
        s,
        cfg,
        methods=methods,
        reference=reference,
        moves=moves,
        sampler=cfg.sampler,
        budget=cfg.budget,
        rewards=rewards,
        temperature=cfg.rollout.temperature,
        forbidden=s.bundle.forbidden_ids,
    )
    if s.cfg.keep.groups_per_step:
        keeper: Recorder = OPTIONAL["keep"](s, cfg)
        loop.keeper = keeper
        loop.ends.callback(keeper.close)
    return loop


def open_pipeline(loop: Loop, cfg: RolloutStage, strategy: Strategy) -> Pipeline:
    """Engine, collector and queue of a stage that generates; they end with the loop.

    Raises:
        ConfigError: the engine or the environment cannot run here, or the strategy cannot be sampled ahead.
    """
    s, stage = loop.session, loop.stage
    engine = open_engine(s, cfg.rollout)
    for name, count in engine.counts.items():
        loop.counters.add(name, count)
    if isinstance(strategy, RememberingStrategy):
        loop.memories.keep("strategy", strategy)
    loop.pipeline = Pipeline(
        stage,
        open_collector(loop, cfg, engine, strategy),
        journal=s.run.journal,
        bounds=bounds_of(cfg.rollout),
        where_to_go_on=partial(where_to_go_on, s),
        staleness=cfg.rollout.staleness,
        restored=s.restored if s.state.step > 0 else None,
    )
    loop.ends.enter_context(closing(loop.pipeline))
    return loop.pipeline


def _learner(
    s: Session,
    cfg: StageBase,
    named: list[tuple[str, torch.nn.Parameter]],
    updates: Updates,
    temperature: float,
    forbidden: tuple[int, ...],
) -> Learner:
    if s.cfg.train.rehearse:
        warm_up(s.policy)
    return Learner(
        policy=s.policy,
        vision=s.vision,
        updates=updates,
        named=named,
        max_grad_norm=cfg.optim.max_grad_norm,
        max_tokens_per_microbatch=s.state.max_tokens_per_microbatch or cfg.max_tokens_per_microbatch,
        layout=layout_told(s, cfg),
        temperature=temperature,
        forbidden=forbidden,
        checkpointing=s.recomputes,
        around=OPTIONAL["train.offload_activations"] if s.cfg.train.offload_activations else None,
        rehearse=s.cfg.train.rehearse,
        rehearse_rollout=s.cfg.train.rehearse,
        memory=ledger_of(s, cfg),
    )


def ledger_of(s: Session, cfg: StageBase) -> MemoryLedger:
    """Make the ledger of a stage, which every forecast tells what to expect."""
    ledger = MemoryLedger(gauge=gauge_of(s.policy.device))
    for foresee in FORECASTS.values():
        foresee(ledger, s, cfg)
    return ledger


def layout_told(s: Session, cfg: StageBase) -> str:
    """The layout of a stage's forward passes; where it is not the one that the recipe asks for, that is said."""
    family = s.policy.bundle.family
    if family.own_code:
        return cfg.forward
    layout, why = foreign(family).training_layout(s.policy, cfg.forward, recomputes=s.recomputes)
    if why:
        s.ui.say(f"stage '{cfg.name}': {why}")
    return layout


def _loader(s: Session, cfg: StageBase, sampler: Any, budget: Method | None, make_sampler: Callable[[], Any]) -> PromptLoader:
    rows, quarantine = s.rows_of(cfg.source, cfg.answer_format), s.run.path / "quarantine.jsonl"
    return PromptLoader(
        samples=rows.samples,
        encoder=s.encoder,
        sampler=sampler,
        answer_format=cfg.answer_format,
        max_bad=s.cfg.data.max_bad_rows,
        bad=s.state.bad_media,
        cost=cost_of(s.policy, rows.prompt_tokens),
        quarantine=lambda sample, reason, message: quarantine_row(quarantine, sample, reason, message),
        budget=None if budget is None or budget == default("budget") else budgets.bind(budget.name, budget.arguments),
        prefetcher=Prefetcher(s.store, make_sampler()) if s.cfg.media.prefetch else None,
    )


def _adapters_of(s: Session, cfg: StageBase) -> Callable[[Policy], None] | None:
    """Puts fresh adapters into a policy, from coordinates of the run, so that a resumed process starts from the same ones."""
    m = s.cfg.model.lora
    if m is None:
        return None
    spec = LoraSpec(rank=m.rank, alpha=m.alpha, targets=m.targets, vision=m.vision)
    return partial(add_adapters, spec=spec, seed_of=lambda layer: rng.key(s.cfg.run.seed, "lora", cfg.name, layer), base=s.base)


def sampler_maker(s: Session, cfg: StageBase, method: Method, samples: Mapping[str, Sample]) -> Callable[[], Any]:
    """Makes the stage's sampler; a second one guesses the next step's rows for the prefetcher.

    Raises (when called):
        ConfigError: the sampler's settings do not fit the rows.
    """
    needs_rows = "rows" in samplers.get(method.name).extra.get("needs", ())
    about: Sequence[Any] = [describe(sample) for sample in samples.values()] if needs_rows else list(samples)
    make = partial(samplers.bind(method.name, method.arguments), about, rng.key(s.cfg.run.seed, "stage", cfg.name))

    def made() -> Any:
        try:
            return make()
        except ValueError as error:
            raise ConfigError(f"stages.{cfg.name}.sampler: {error}") from error

    return made


def check_rewards(s: Session) -> None:
    """Try the rewards of the stages that are left on gold and junk answers, before anything is evaluated or trained: a reward that fails
    would end the run after all stages before its own. Tasks of an environment have no gold answers.

    Raises:
        ConfigError: some gold answer does not win, or a reward fails.
    """
    problems: list[str] = []
    for cfg in s.cfg.stages[s.state.stage :]:
        if isinstance(cfg, RolloutStage) and cfg.environment is None and cfg.rewards:
            rows = s.rows_of(cfg.source, cfg.answer_format).samples
            with s.clock.phase("audit"):
                problems += reward_problems(cfg, s.cfg.plugins, list(islice(rows.values(), 64)))
    if problems:
        raise ConfigError(problems)


def _rewards(s: Session, cfg: RolloutStage) -> RewardRunner:
    for note in here_notes(cfg.name, cfg.rewards):
        s.ui.say(note)
    return reward_runner(cfg, s.cfg.plugins)


def _reference(s: Session, *, moves: bool) -> Reference:
    """The stage's starting weights as a second model. A tower that does not train shares its features.

    With adapters they are in memory already, under the adapters. Else 16-bit numbers do where the recipe computes in them, unless the
    reference `moves`."""
    trained = s.policy
    if trained.lora is not None:
        own = VisionCache(s.store, budget_bytes=s.cfg.media.cache_bytes) if trained.vision_trains else s.vision
        return Reference(policy=trained.without_adapters(), vision=own)
    with s.clock.phase("load"):
        policy = s.load_policy(s.base, trains=s.cfg.trained if moves else ())
        policy.model.requires_grad_(False)
        s.engine.wrap(policy)
    if trained.vision_trains:
        return Reference(policy=policy, vision=s.open_vision())
    # the same tower on both sides: one set of features
    policy.vision_version = trained.vision_version
    return Reference(policy=policy, vision=s.vision)


def _memories(s: Session) -> Memories:
    """What the last checkpoint holds of the stage that this process resumes in."""
    path = None if s.restored is None else s.restored / MEMORIES
    return Memories(s.state.memories, read_tensors(path) if path is not None and path.exists() else None)
