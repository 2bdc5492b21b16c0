"""Episodes as an evaluation: plays held-out episodes with fixed seeds, keeps one record per attempt, and the trajectories beside them.

`<task>.jsonl` holds the records, `<task>.episodes.jsonl` what was seen and done, `screens/` the screens by the hash of their content.
Episodes are played in batches at fixed places; a batch that is not there whole is played again, with the same seeds and in the same
company. An attempt with a fault has no record, so that it is in no denominator; it is counted, and played again by the next evaluation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import faults, fs
from vlmrl.answers.episode import EPISODE, spl
from vlmrl.answers.tags import FREE, parse
from vlmrl.config.section import EnvironmentMethod, HistorySection
from vlmrl.errors import ConfigError, RemoteError, StorageError
from vlmrl.evals.ask.evaluate import SINGLE_PROCESS, Collective, EvalOptions, labels, rounds
from vlmrl.evals.score.records import REFERENCE, Key, Record, RecordStore, Think, prompt_ids_hash, settings_json
from vlmrl.extras.agents.episodes import EnvSetup, Talk, make_table, run_attempts
from vlmrl.extras.agents.find import default_tasks, environments, open_pool
from vlmrl.extras.agents.history import History
from vlmrl.extras.agents.play import keep
from vlmrl.extras.agents.pool import PoolSettings
from vlmrl.extras.agents.prompts import next_prompt
from vlmrl.extras.agents.rows import FORMAT, TaskOf, plain_task, reads_answers, recorded, takes_rows
from vlmrl.extras.agents.score import Played, score
from vlmrl.extras.agents.trajectory import Trajectory, environment_seed, trajectory_from_json, trajectory_to_json, turn_seed
from vlmrl.media.store import MediaStore
from vlmrl.policy.model import ProcessorBundle
from vlmrl.types import Sample, digest

SCREENS, SUFFIX = "screens", ".episodes.jsonl"
COORDINATE = "held-out episodes"
"""In seeds, where those of training have the name of a stage, which has no blank."""


@dataclass(frozen=True, kw_only=True)
class EvalEpisode:
    """One episode to play."""

    id: str
    task: Mapping[str, Any]
    """What the environment is given."""
    seed: int
    """Of the environment."""
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Of the record, where a row states them."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """In what world episodes are played, and under which prompts."""

    environment: EnvironmentMethod
    history: HistorySection
    answer_format: str
    max_prompt_tokens: int
    plugins: tuple[str, ...] = ()

    def names(self) -> dict[str, float | str]:
        """In the settings of records."""
        h = self.history
        shown = "all" if h.screens is None else f"{h.screens}/{h.every}" + ("" if h.actions else ", no actions")
        return {"max_turns": float(self.environment.max_turns), "history": shown}


@dataclass(frozen=True, kw_only=True)
class EpisodeResult:
    """What was played."""

    records: list[Record]
    """Of the attempts without a fault, on every rank, in the order of the episodes."""
    groups: list[list[Trajectory]]
    """All attempts, those at one episode together."""

    @property
    def played(self) -> Played:
        return score(self.groups)


def of_rows(samples: Sequence[Sample], seed: int, task_of: TaskOf = plain_task) -> list[EvalEpisode]:
    """Rows as episodes, as in training: what stands under `environment` of a row's `meta`, or what `task_of` makes of the row.

    Raises:
        RowError: the environment cannot be given this row.
    """
    return [_held_out(sample.id, task_of(sample), seed, dict(labels(sample))) for sample in samples]


def of_environment(
    name: str,
    count: int,
    seed: int,
    plugins: Sequence[str] = (),
    *,
    arguments: Mapping[str, Any] | None = None,
    answer_format: str = FREE,
) -> list[EvalEpisode]:
    """So many episodes of the tasks that an environment with these arguments declares, in turn. Fewer are the first of more.
    `answer_format`: for an environment that reads answers itself.

    Raises:
        ConfigError: there is no such environment, or its arguments name no tasks.
    """
    known = environments(plugins)
    if name not in known.names():
        raise ConfigError(known.problems(name, {}, "environment"))
    reads = {FORMAT: answer_format} if takes_rows(name) else {}
    tasks = [{**task, **reads} for task in default_tasks(name, arguments)]
    turned = [(n, tasks[n % len(tasks)]) for n in range(count)]
    return [_held_out(f"{task.get('id', name)}-{n:04d}", task, seed, {"category": str(task.get("id", name))}) for n, task in turned]


def _held_out(name: str, task: Mapping[str, Any], seed: int, said: dict[str, Any]) -> EvalEpisode:
    known = {key: value for key, value in said.items() if value is not None}
    return EvalEpisode(id=name, task=task, seed=environment_seed(seed, COORDINATE, 0, 0, name), labels=known)


def evaluate_episodes(
    talk: Talk,
    episodes: Sequence[EvalEpisode],
    conditions: Conditions,
    options: EvalOptions,
    *,
    out: Path,
    bundle: ProcessorBundle,
    store: MediaStore,
    fingerprint: str,
    model: str,
    collective: Collective = SINGLE_PROCESS,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> EpisodeResult:
    """Play `options.samples` attempts at every episode; the result on every rank. `out` then holds the records of whole attempts.

    Args:
        talk: opens sessions of a rollout engine in this process.
        out: the records file. Batches whose attempts it holds are not played again.
        stop: asked before each batch on every rank; once one says yes, what is there is returned.
        progress: called with (episodes played, all).

    Raises:
        ConfigError: the environment cannot run here.
        RemoteError: the environment does not even begin an episode.
        RowError, MediaError: an observation cannot be encoded.
        StorageError: a file is damaged or cannot be written.
    """
    e, h = conditions.environment, conditions.history
    settings = PoolSettings(workers=e.workers, deadline=e.deadline, memory=e.memory, retries=e.retries)
    with open_pool(e.name, e.arguments, plugins=conditions.plugins, settings=settings) as pool:
        table = make_table(
            bundle,
            store,
            out.parent / SCREENS,
            pool=pool,
            talk=talk,
            settings=options.settings,
            history=History(screens=h.screens, every=h.every, actions=h.actions),
            answer_format=conditions.answer_format,
            turns=e.max_turns,
            longest=conditions.max_prompt_tokens,
            whole=reads_answers(e.name),
        )
        one = _Playing(
            table=table,
            conditions=conditions,
            options=options,
            fingerprint=fingerprint,
            model=model,
            first_prompt=collective.run_synchronized(lambda: _first_prompt(table, episodes)),
            tokenizer_len=lambda text: len(bundle.tokenize(text)),
        )
        return _evaluate(one, episodes, out, collective, stop, progress)


def _first_prompt(table: EnvSetup, episodes: Sequence[EvalEpisode]) -> str:
    """Hash of the first prompt of the first episode that begins: template, tokenizer and size of screens are in it. The pool knows its
    identity then.

    Raises:
        RemoteError: no episode begins.
    """
    said = ""
    for asked in episodes:
        episode = table.pool.episode(asked.task, asked.seed)
        try:
            reply = episode.reset().result()
        finally:
            episode.close()
        if reply.observation is None:
            said = said or f"; '{asked.id}': {reply.fault} {reply.detail}".rstrip()
            continue
        seen = keep(reply.observation, table.screens)
        nothing = Trajectory(task=dict(asked.task), seed=asked.seed, k=0, turns=())
        prompt = next_prompt(nothing, seen, table.history, table.conversation, table.handle, answer_format=table.answer_format)
        return prompt_ids_hash(prompt)
    raise RemoteError(f"environment: none of {len(episodes)} episodes begins{said}")


@dataclass(frozen=True, kw_only=True)
class _Playing:
    """How the episodes of one evaluation are played and recorded."""

    table: EnvSetup
    conditions: Conditions
    options: EvalOptions
    fingerprint: str
    model: str
    first_prompt: str
    tokenizer_len: Callable[[str], int]

    def sample_hash(self, episode: EvalEpisode) -> str:
        """Of the world, its version, its arguments, the task and the seed."""
        e = self.conditions.environment
        return digest([dict(self.table.pool.identity), e.name, e.arguments, recorded(episode.task), episode.seed])

    def settings(self) -> dict[str, float | str]:
        return {**settings_json(self.options.settings, REFERENCE), **self.conditions.names()}

    def keys(self, episode: EvalEpisode) -> list[Key]:
        """`Record.key` of the records of an episode's attempts."""
        seed = self.options.seed if self.options.settings.temperature > 0 else None
        where = self.fingerprint, self.sample_hash(episode), self.first_prompt, json.dumps(self.settings(), sort_keys=True)
        return [(*where, k, seed) for k in range(self.options.samples)]

    def play(self, batch: Sequence[EvalEpisode]) -> list[list[Trajectory]]:
        """Attempts at each episode of a batch."""
        options = self.options

        def seed_of(place: int, k: int, turn: int) -> int:
            return turn_seed(options.seed, COORDINATE, 0, 0, batch[place].id, k, turn)

        return run_attempts(self.table, [(one.task, one.seed) for one in batch], options.samples, seed_of)

    def record(self, episode: EvalEpisode, played: Trajectory) -> Record:
        """The record of an attempt without a fault."""
        turns, best = played.turns, played.optimum
        success = played.outcome == "success"
        thoughts = [parse(turn.action, self.conditions.answer_format).thought or "" for turn in turns]
        scores = {
            "success": float(success),
            "valid_actions": sum(turn.outcome != "invalid" for turn in turns) / max(1, len(turns)),
        }
        if best is not None:
            scores["spl"] = spl(success=success, turns=len(turns), fewest=best.turns)
        scores |= {f"info/{name}": value for name, value in played.told.items()}
        return Record(
            model=self.model,
            sample_id=episode.id,
            task=self.conditions.environment.name,
            cluster=episode.id,
            sample_hash=self.sample_hash(episode),
            prompt_ids_hash=self.first_prompt,
            answer_format=self.conditions.answer_format,
            answer_type=EPISODE,
            text="\n".join(turn.action for turn in turns),
            answer=played.outcome,
            status="ok",
            format_ok=None,
            pred=(float(played.total or 0.0), float(len(turns))),
            gold=() if best is None else (float(best.reward), float(best.turns)),
            scores=scores,
            think=Think(has=any(text.strip() for text in thoughts), tokens=sum(self.tokenizer_len(text) for text in thoughts if text)),
            n_in=None,
            n_out=sum(len(turn.ids) for turn in turns),
            finish="length" if any(turn.finish == "length" for turn in turns) else "stop",
            unclosed=False,
            fingerprint=self.fingerprint,
            settings=self.settings(),
            k=played.k,
            seed=self.options.seed if self.options.settings.temperature > 0 else None,
            task_version=self.options.task_version,
            **({"difficulty": f"{best.turns}"} if best is not None else {}) | dict(episode.labels),
        )


def _evaluate(
    one: _Playing,
    episodes: Sequence[EvalEpisode],
    out: Path,
    collective: Collective,
    stop: Callable[[], bool] | None,
    progress: Callable[[int, int], None] | None,
) -> EpisodeResult:
    size = one.options.batch_prompts
    batches = [episodes[i : i + size] for i in range(0, len(episodes), size)]
    keys = [[one.keys(episode) for episode in batch] for batch in batches]
    beside = out.with_suffix(SUFFIX)
    first = collective.rank() == 0
    store = collective.run_synchronized(lambda: RecordStore(out) if first else None)
    known = collective.run_synchronized(lambda: _read(beside) if first else {})
    found, known = collective.gather((store.found if store is not None else {}, known))[0]
    done: dict[int, list[list[Trajectory]]] = {}
    for place, batch in enumerate(batches):
        wanted = [
            (found.get(key), name)
            for episode, own in zip(batch, keys[place], strict=True)
            for key, name in zip(own, _names(episode, own), strict=True)
        ]
        if all(record is not None and known.get(name, (None,))[0] == _hash(record) for record, name in wanted):
            done[place] = [[known[name][1] for name in _names(episode, own)] for episode, own in zip(batch, keys[place], strict=True)]

    def records(places: Sequence[int]) -> list[Record]:
        return [
            one.record(episode, played)
            for place in sorted(places)
            for episode, group in zip(batches[place], done[place], strict=True)
            for played in group
            if played.fault is None
        ]

    def tell() -> None:
        if progress is not None:
            progress(sum(len(batches[place]) for place in done), len(episodes))

    if store is not None:
        store.keep([key for batch in keys for own in batch for key in own], records(list(done)))
    waiting = [place for place in range(len(batches)) if place not in done]
    tell()
    for place, groups in rounds(lambda place: one.play(batches[place]), waiting, collective, stop):
        done[place] = groups
        if store is not None:
            fs.append(beside, _lines(one, batches[place], groups))
            store.append(records([place]))
            faults.point("eval.record")
        tell()
    made = records(list(done))
    if store is not None:
        fs.write_bytes(beside, b"".join(_lines(one, batches[place], done[place]) for place in sorted(done)))
        store.finish(made)
    return EpisodeResult(records=made, groups=[group for place in sorted(done) for group in done[place]])


def _names(episode: EvalEpisode, keys: Sequence[Key]) -> list[tuple[str, int]]:
    return [(episode.id, k) for k in range(len(keys))]


def _hash(record: Record) -> str:
    """What ties a trajectory to its record."""
    return hashlib.sha256(record.line()).hexdigest()[:32]


def _lines(one: _Playing, batch: Sequence[EvalEpisode], groups: Sequence[Sequence[Trajectory]]) -> bytes:
    """Lines of the episodes file."""
    rows = [
        {
            "id": episode.id,
            "record": None if played.fault is not None else _hash(one.record(episode, played)),
            "trajectory": trajectory_to_json(played),
        }
        for episode, group in zip(batch, groups, strict=True)
        for played in group
    ]
    return b"".join(json.dumps(row, sort_keys=True).encode() + b"\n" for row in rows)


def _read(path: Path) -> dict[tuple[str, int], tuple[str | None, Trajectory]]:
    """(episode, attempt) -> (hash of its record, trajectory), the last line of each."""
    return {(name, played.k): (record, played) for name, record, played in read_episodes(path)} if path.is_file() else {}


def read_episodes(path: Path) -> list[tuple[str, str | None, Trajectory]]:
    """(episode, hash of the record, trajectory) of every line of an episodes file. A last line that is not whole was being written when
    the process died; it is left out.

    Raises:
        StorageError: the file is missing, or another line is damaged.
    """
    if not path.is_file():
        raise StorageError(f"{path}: no episodes; run the evaluation first")
    out: list[tuple[str, str | None, Trajectory]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            out.append((row["id"], row["record"], trajectory_from_json(row["trajectory"])))
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{path}:{number}: not an episode ({error!r}); remove the file to have it played again") from error
    return out
