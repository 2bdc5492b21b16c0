"""What a stage collects its rollouts with: answers to prompts, or episodes in an environment. The loop sees a collector.

The environment's processes live as long as the stage. Its screens are files of the run, `screens/<hash>.png`: the journal names them, so a
resumed run reads what was seen and not what would be seen now.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vlmrl.config.schema import RolloutStage
from vlmrl.config.section import EnvironmentMethod
from vlmrl.data.history import History
from vlmrl.envs.find import open_pool
from vlmrl.envs.pool import EnvPool, PoolSettings
from vlmrl.envs.rows import takes_rows, task_maker
from vlmrl.protocols import RolloutEngine, Strategy
from vlmrl.rollout.collect import Collector
from vlmrl.rollout.episodes import Table, make_table, talk_of
from vlmrl.rollout.forks import Forks
from vlmrl.rollout.guide import collector_for
from vlmrl.rollout.turns import EpisodeCollector, FaultWatch
from vlmrl.train.session import Session
from vlmrl.train.stage.base import StageRun
from vlmrl.train.stage.engines import longest_prompt
from vlmrl.types import GenerationSettings

SCREENS = "screens"
MakeCollector = Callable[..., Collector]
"""(keyword arguments of `Collector`) -> Collector."""


def collector_of(s: Session, stage: StageRun, cfg: RolloutStage, engine: RolloutEngine, strategy: Strategy) -> MakeCollector:
    """What makes the collector of a stage.

    Raises:
        ConfigError: the environment cannot run here.
    """
    if cfg.environment is None:
        return collector_for(strategy, stage.loader.encoder.encode)
    pool = stage.ends.enter_context(pool_of(cfg.environment, s.cfg.plugins))
    stage.counters.add("environment/retried", lambda: float(sum(pool.retried.values())))
    watch = stage.memories.keep("environment", FaultWatch(cfg.environment.max_faults))
    task_of = task_maker(cfg.environment.name, root=s.places.data, answer_format=cfg.answer_format)
    return partial(EpisodeCollector, table=table_of(s, cfg, pool, engine), watch=watch, task_of=task_of)


def pool_of(environment: EnvironmentMethod, plugins: tuple[str, ...]) -> EnvPool:
    """The processes of a recipe's environment."""
    e = environment
    settings = PoolSettings(workers=e.workers, deadline=e.deadline, memory=e.memory, retries=e.retries)
    return open_pool(e.name, e.arguments, plugins=plugins, settings=settings)


def table_of(s: Session, cfg: RolloutStage, pool: EnvPool, engine: RolloutEngine) -> Table:
    """How the stage's episodes are played."""
    assert cfg.environment is not None
    folder, h, rollout = s.run.path / SCREENS, cfg.history, cfg.rollout
    return make_table(
        s.bundle,
        s.store,
        folder,
        pool=pool,
        talk=talk_of(engine),
        settings=GenerationSettings(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature, top_p=rollout.top_p),
        history=History(screens=h.screens, every=h.every, actions=h.actions),
        answer_format=cfg.answer_format,
        turns=cfg.environment.max_turns,
        longest=longest_prompt(s.cfg, rollout),
        forks=Forks.of(rollout.forks),
        whole=takes_rows(cfg.environment.name),
    )
