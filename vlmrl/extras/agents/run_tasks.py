"""Evaluation of a run whose tasks are played in an environment: the held-out rows, and tasks of its suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlmrl.config.schema import RolloutStage
from vlmrl.evals.ask.evaluate import EvalOptions
from vlmrl.evals.ask.tasks import Task
from vlmrl.evals.score.records import Record
from vlmrl.extras.agents.episodes import talk_of
from vlmrl.extras.agents.evaluate import Conditions, EvalEpisode, evaluate_episodes, of_rows
from vlmrl.extras.agents.rows import task_maker
from vlmrl.extras.agents.suite_tasks import conditions_of, task_episodes
from vlmrl.media.store import MediaStore
from vlmrl.policy.fingerprint import weights_fingerprint
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import VisionCache
from vlmrl.rollout.own import own_engine
from vlmrl.run.evaluate import Stop
from vlmrl.run.session import Session
from vlmrl.train import dist
from vlmrl.types import Sample

Played = tuple[list[Record], dict[str, float]]
"""Records of the episodes without a fault, and the share of the others, by the name of its metric."""


def play_rows(
    s: Session,
    label: str,
    name: str,
    stage: RolloutStage,
    samples: Sequence[Sample],
    policy: Policy,
    vision: VisionCache,
    options: EvalOptions,
    out: Path,
    stop: Stop,
) -> Played:
    """Play the tasks of held-out rows in the environment of the recipe's last stage; `held_out` of `evals.ask.tasks.EPISODES`."""
    environment = stage.environment
    assert environment is not None
    conditions = Conditions(
        environment=environment,
        history=stage.history,
        answer_format=stage.answer_format,
        max_prompt_tokens=s.cfg.data.max_prompt_tokens,
        plugins=s.cfg.plugins,
    )
    vision.get_ready(policy)
    episodes = of_rows(samples, 0, task_maker(environment.name, root=s.places.data, answer_format=stage.answer_format))
    return _played(s, label, name, policy, vision, s.store, episodes, conditions, options, out, stop)


def play_suite_task(
    s: Session,
    label: str,
    name: str,
    task: Task,
    root: Path,
    policy: Policy,
    store: MediaStore,
    options: EvalOptions,
    out: Path,
    stop: Stop,
) -> Played:
    """Play the episodes of a task of the run's suite; `task_of_run` of `evals.ask.tasks.EPISODES`."""
    vision = VisionCache(store, budget_bytes=task.media.cache_bytes)
    vision.get_ready(policy)
    episodes, _ = dist.run_synchronized(lambda: task_episodes(task, root, None))
    return _played(s, label, name, policy, vision, store, episodes, conditions_of(task), options, out, stop)


def _played(
    s: Session,
    label: str,
    name: str,
    policy: Policy,
    vision: VisionCache,
    store: MediaStore,
    episodes: Sequence[EvalEpisode],
    conditions: Conditions,
    options: EvalOptions,
    out: Path,
    stop: Stop,
) -> Played:
    engine = own_engine(policy, vision)
    # before shards are whole: memory that numpy has seen cannot be given back, and theirs is
    fingerprint = weights_fingerprint(policy)
    with s.ui.bar(label, len(episodes)) as bar, policy.shards.whole():
        result = evaluate_episodes(
            talk_of(engine),
            episodes,
            conditions,
            options,
            out=out,
            bundle=s.bundle,
            store=store,
            fingerprint=fingerprint,
            model=name,
            collective=dist,
            stop=stop,
            progress=lambda done, total: bar.update(done),
        )
    faults = result.played.faults
    if faults:
        listed = ", ".join(f"{reason} {n}" for reason, n in sorted(faults.items()))
        s.ui.say(f"{label}: faults, in none of its numbers: {listed}")
    attempts = sum(map(len, result.groups))
    return result.records, {"fault_rate": faults.total() / attempts if attempts else 0.0}
