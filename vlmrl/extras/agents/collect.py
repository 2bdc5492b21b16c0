"""What a stage collects episodes with.

The environment's processes live as long as the stage. Its screens are files of the run, `screens/<hash>.png`: the journal names them, so a
resumed run reads what was seen and not what would be seen now.
"""

from __future__ import annotations

from typing import Any

from vlmrl.config.schema import RolloutStage
from vlmrl.config.section import EnvironmentMethod
from vlmrl.extras.agents.episodes import EnvSetup, make_table, talk_of
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.forks import Forks
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.pool import EnvPool, PoolSettings
from vlmrl.extras.agents.rows import reads_answers, task_maker
from vlmrl.extras.agents.turns import EpisodeCollector, FaultWatch
from vlmrl.protocols import RolloutEngine
from vlmrl.rollout.collect import Collector
from vlmrl.run.collector import settings_of
from vlmrl.run.engines import longest_prompt
from vlmrl.run.loop import Loop
from vlmrl.run.session import Session

SCREENS = "screens"


def of_episodes(loop: Loop, cfg: RolloutStage, parts: dict[str, Any]) -> Collector:
    """Make the collector of a stage with an environment; `episodes` of `run.collector.COLLECTORS`.

    Raises:
        ConfigError: the environment cannot run here.
    """
    s = loop.session
    assert cfg.environment is not None
    pool = loop.ends.enter_context(pool_of(cfg.environment, s.cfg.plugins))
    loop.counters.add("environment/retried", lambda: float(sum(pool.retried.values())))
    return EpisodeCollector(
        **parts,
        table=table_of(s, cfg, pool, parts["engine"]),
        watch=loop.memories.keep("environment", FaultWatch(cfg.environment.max_faults)),
        task_of=task_maker(cfg.environment.name, root=s.places.data, answer_format=cfg.answer_format),
    )


def pool_of(environment: EnvironmentMethod, plugins: tuple[str, ...]) -> EnvPool:
    """The processes of a recipe's environment."""
    e = environment
    settings = PoolSettings(workers=e.workers, deadline=e.deadline, memory=e.memory, retries=e.retries)
    return open_pool(e.name, e.arguments, plugins=plugins, settings=settings)


def table_of(s: Session, cfg: RolloutStage, pool: EnvPool, engine: RolloutEngine) -> EnvSetup:
    """How the stage's episodes are played."""
    assert cfg.environment is not None
    folder, h, rollout = s.run.path / SCREENS, cfg.history, cfg.rollout
    return make_table(
        s.bundle,
        s.store,
        folder,
        pool=pool,
        talk=talk_of(engine),
        settings=settings_of(cfg),
        history=History(screens=h.screens, every=h.every, actions=h.actions),
        answer_format=cfg.answer_format,
        turns=cfg.environment.max_turns,
        longest=longest_prompt(s.cfg, rollout),
        forks=Forks.of(rollout.forks),
        whole=reads_answers(cfg.environment.name),
    )
