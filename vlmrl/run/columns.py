"""The reward columns of a recipe's stage: those that could hang or hurt in worker processes, the others in this one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from vlmrl.config.schema import RolloutStage
from vlmrl.protocols import reward as registry
from vlmrl.rewards.run.place import in_worker, place
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.run.audit_report import SHOWN
from vlmrl.types import Sample


def reward_runner(cfg: RolloutStage, plugins: Sequence[str]) -> RewardRunner:
    """The runner of a stage. Close it when the stage is over: its workers start at the first call and end then."""
    pool = None
    if any(in_worker(registry.get(r.name), r.isolate) for r in cfg.rewards):
        from vlmrl.rewards.run.workers import RewardPool, WorkerSettings

        w = cfg.reward_workers
        pool = RewardPool(WorkerSettings(count=w.count, deadline=w.deadline, memory=w.memory, calls=w.calls))
    columns = [(r.key, r.weight, place(r.name, r.arguments, isolate=r.isolate, pool=pool, plugins=plugins)) for r in cfg.rewards]
    return RewardRunner(columns, max_invalid=cfg.max_invalid_rewards, pool=pool, entries={r.key: r.name for r in cfg.rewards})


def reward_problems(cfg: RolloutStage, plugins: Sequence[str], samples: Sequence[Sample]) -> list[str]:
    """Gold answers must earn the full reward through the parser that training uses, and junk none.

    Returns:
        What is wrong, the first few of it; empty where every gold answer wins.
    """
    with closing(reward_runner(cfg, plugins)) as runner:
        found = [f"stage '{cfg.name}': {problem}" for problem in runner.self_test(samples, cfg.answer_format)]
    return found[:SHOWN] + [f"stage '{cfg.name}': ... and {len(found) - SHOWN} more rows like these"] * (len(found) > SHOWN)
