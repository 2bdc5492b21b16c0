"""Tasks of suites that are played: their episodes, and the records of a task in the evaluation of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlmrl.errors import ConfigError
from vlmrl.evals.ask.engines import EvalEngine, LocalEngine
from vlmrl.evals.ask.run import SuiteEvaluation, count_notes, eval_options, task_samples
from vlmrl.evals.ask.tasks import Task
from vlmrl.evals.score.records import Record
from vlmrl.extras.agents.episodes import talk_of
from vlmrl.extras.agents.evaluate import Conditions, EvalEpisode, evaluate_episodes, of_environment, of_rows
from vlmrl.extras.agents.rows import task_maker
from vlmrl.media.store import MediaStore
from vlmrl.types import Sample

NOT_PLAYED = (
    "episodes are played by the reference engine in this process; ask neither a served model nor vLLM, and there is no text to score again"
)


def conditions_of(task: Task) -> Conditions:
    """Those of a task of a suite."""
    assert task.environment is not None
    return Conditions(
        environment=task.environment,
        history=task.history,
        answer_format=task.asked,
        max_prompt_tokens=task.max_prompt_tokens,
        plugins=task.plugins,
    )


def of_task(task: Task, samples: Sequence[Sample], root: Path) -> list[EvalEpisode]:
    """The rows of a task of a suite as episodes. `root`: the data root.

    Raises:
        RowError: as `of_rows`.
    """
    assert task.environment is not None
    return of_rows(samples, task.episode_seed, task_maker(task.environment.name, root=root, answer_format=task.asked))


def task_episodes(task: Task, root: Path, out: Path | None) -> tuple[list[EvalEpisode], int]:
    """The episodes that a task plays, and how many there are in all: of its rows (as `task_samples`), or of its environment's tasks."""
    assert task.environment is not None
    if task.file:
        samples, whole = task_samples(task, root, out)
        return of_task(task, samples, root), whole
    e, wanted = task.environment, task.episodes if task.limit is None else min(task.limit, task.episodes)
    return of_environment(e.name, wanted, task.episode_seed, task.plugins, arguments=e.arguments, answer_format=task.asked), task.episodes


def play_task(one: SuiteEvaluation, task: Task, store: MediaStore, engine: EvalEngine, file: Path) -> list[Record]:
    """Play the episodes of a task and give their records; `task` of `tasks.EPISODES`.

    Raises:
        ConfigError: what answers cannot play.
    """
    if not isinstance(engine, LocalEngine):
        raise ConfigError(f"task '{task.id}': {NOT_PLAYED}")
    episodes, whole = task_episodes(task, one.root, one.out if one.collective.rank() == 0 else None)
    result = evaluate_episodes(
        talk_of(engine.engine),
        episodes,
        conditions_of(task),
        eval_options(task, batch_prompts=one.batch_prompts, seed=one.seed),
        out=file,
        bundle=one.model.bundle,
        store=store,
        fingerprint=engine.fingerprint,
        model=one.model.name,
        collective=one.collective,
        progress=None if (tell := one.watch.progress) is None else lambda done, total: tell(task.id, done, total),
    )
    one.fingerprint = engine.fingerprint
    one.notes += [*count_notes(task, len(episodes), whole), *(f"{task.id}: {line}" for line in result.played.lines())]
    return result.records
