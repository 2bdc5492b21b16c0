"""What a stage collects episodes with.

The environment's processes live as long as the stage. Its screens are files of the run, `screens/<hash>.png`: the journal names them, so a
resumed run reads what was seen and not what would be seen now.
"""

from __future__ import annotations

from typing import Any

from vlmrl.config.schema import RolloutStage
from vlmrl.config.section import EnvironmentMethod, default
from vlmrl.extras.agents.episodes import EnvSetup, make_table, talk_of
from vlmrl.extras.agents.find import open_pool
from vlmrl.extras.agents.foresight import Coming, Foresight
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
from vlmrl.run.open_stage import sampler_maker
from vlmrl.run.session import Session
from vlmrl.train.meter import Counters
from vlmrl.train.prefetch import Prefetcher

SCREENS = "screens"


def of_episodes(loop: Loop, cfg: RolloutStage, parts: dict[str, Any]) -> Collector:
    """Make the collector of a stage with an environment; `episodes` of `run.collector.COLLECTORS`.

    Raises:
        ConfigError: the environment cannot run here.
    """
    s = loop.session
    assert cfg.environment is not None
    pool = loop.ends.enter_context(pool_of(cfg.environment, s.cfg.plugins))
    table = table_of(s, cfg, pool, parts["engine"])
    count(loop.counters, table)
    return EpisodeCollector(
        **parts,
        table=table,
        foresight=foresight_of(loop, cfg),
        watch=loop.memories.keep("environment", FaultWatch(cfg.environment.max_faults)),
        task_of=task_maker(cfg.environment.name, root=s.places.data, answer_format=cfg.answer_format),
    )


def count(counters: Counters, table: EnvSetup) -> None:
    """Log what the episodes cost beside what they came to. `time/environment` and `time/sampling` are parts of `time/rollout`."""
    pool, seconds = table.pool, table.spent.seconds
    counters.add("environment/retried", lambda: float(sum(pool.retried.values())))
    counters.add("time/environment", lambda: seconds["environment"])
    counters.add("time/sampling", lambda: seconds["sampling"])
    counters.add("work/worlds_begun", lambda: float(pool.begun()))
    counters.add("work/worlds_ahead", lambda: float(pool.begun(ahead=True)))
    counters.add("work/worlds_unused", lambda: float(pool.ahead.thrown_away))
    counters.add("work/screens_shared", lambda: float(pool.ahead.drawn_once))


def foresight_of(loop: Loop, cfg: RolloutStage) -> Foresight:
    """What the stage plays next, guessed with a sampler of its own."""
    s, stage = loop.session, loop.stage
    samples = s.rows_of(cfg.source, cfg.answer_format).samples
    guesser = Prefetcher(s.store, sampler_maker(s, cfg, cfg.sampler or default("sampler"), samples)())

    def guess() -> list[Coming]:
        loader, ledger = stage.loader, stage.state.ledger
        planned = guesser.guess(loader.sampler, ledger, prompts=cfg.rollout.prompts_per_step, rollouts=cfg.rollout.num_generations)
        mine = loader.mine(list(enumerate(loader.dealt(planned, ledger))), ledger)
        return [Coming(place=place, sample=samples[one.sample_id], attempts=one.num_generations) for place, one in mine]

    return Foresight(guess, steps=cfg.steps)


def pool_of(environment: EnvironmentMethod, plugins: tuple[str, ...]) -> EnvPool:
    """The processes of a recipe's environment."""
    e = environment
    settings = PoolSettings(workers=e.workers, deadline=e.deadline, memory=e.memory, retries=e.retries, ahead=e.ahead)
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
