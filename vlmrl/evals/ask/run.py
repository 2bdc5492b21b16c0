"""The suite runner: evaluates a model on every task of a suite, from a folder of weights to a table. Answers already there are kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl import __version__, fs, rng
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.encode import Encoder, MediaSource
from vlmrl.data.source import load_source
from vlmrl.errors import DataError, MediaError, RowError
from vlmrl.evals.ask.evaluate import SINGLE_PROCESS, Collective, EvalOptions, evaluate
from vlmrl.evals.ask.models import Model, local, open_store
from vlmrl.evals.ask.suite import Suite, data_root_of, load_suite, suite_path
from vlmrl.evals.ask.tasks import EPISODES, Task
from vlmrl.evals.score.measures import JUDGED, LABELS
from vlmrl.evals.score.records import Record, sha256
from vlmrl.evals.score.summary import Interval, Summary, summarize
from vlmrl.evals.score.table import COUNTS, interval_text, markdown, summary_cells
from vlmrl.media.store import MediaStore
from vlmrl.policy.model import ProcessorBundle
from vlmrl.registry import Catalogue
from vlmrl.types import GenerationSettings, Prompt, Sample

if TYPE_CHECKING:
    from rich.console import Group

ENGINES: Catalogue[Callable[..., AbstractContextManager[Model]]] = Catalogue("engine of evaluations", {"hf": local})
JUDGES: Catalogue[Callable[..., tuple[list[Record], dict[str, int]]]] = Catalogue("judge of answers")
"""Gives records verdicts among their scores (`judged_`), and says why verdicts are missing -> how many."""
_SHOWN = 5
_SEED = 0  # of the bootstrap


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the caller wants otherwise than the suite says. Results differ then, and say so: the task's settings are in each record."""

    samples: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    limit: int | None = None
    max_new_tokens: int | None = None
    seed: int = 0
    """Of sampled answers."""

    def of(self, task: Task) -> Task:
        given = {name: value for name, value in dataclasses.asdict(self).items() if name != "seed" and value is not None}
        return task.model_copy(update=given)

    def all_of(self, suite: Suite) -> tuple[Task, ...]:
        return tuple(self.of(task) for task in suite.tasks)


@dataclass(frozen=True, kw_only=True)
class EvalCallbacks:
    """What is told to whom evaluates, while it goes on."""

    progress: Callable[[str, int, int], None] | None = None
    """Called with (task, done, total)."""
    answered: Callable[[Sequence[Prompt], MediaStore], None] | None = None
    """Called on the first rank with each task's prompts and media once it is answered, for pictures in a report."""


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """What `evaluate_suite` found; prints as tables in rich."""

    suite: Suite
    model: str
    fingerprint: str
    summaries: dict[str, Summary]
    """By task."""
    records: dict[str, list[Record]]
    out: Path
    notes: tuple[str, ...] = ()
    """What the numbers must not be taken for."""
    processor: str = ""
    """Kind of the processor that made prompts and pixels, for those who compare."""

    def macro(self) -> float | None:
        """Average the tasks' primary metrics: one number for the suite. None for one task, if some task has none, or if one is a count."""
        found = [self.primary(task) for task in self.suite.tasks]
        if len(found) < 2 or any(x is None for x in found) or any(task.primary in COUNTS for task in self.suite.tasks):
            return None
        return sum(x.mean for x in found if x is not None) / len(found)

    def primary(self, task: Task) -> Interval | None:
        return self.summaries[task.id].metrics.get(task.primary)

    def overview(self) -> list[list[str]]:
        """Make the cells of a row per task with its primary metric, and of the macro mean."""
        rows = [["task", "n", "metric", "value"]]
        for task in self.suite.tasks:
            x = self.primary(task)
            value = "-" if x is None else interval_text(task.primary, x)
            rows.append([task.id, str(self.summaries[task.id].n), LABELS[task.primary], value])
        macro = self.macro()
        if macro is not None:
            from vlmrl.metrics.intervals import mean_interval

            means = [x.mean for task in self.suite.tasks if (x := self.primary(task)) is not None]
            bounds = mean_interval(means, rng.generator(_SEED, "bootstrap", "tasks"), shares=False)
            rows.append(["macro mean over tasks", "", "", interval_text("macro", Interval.of(macro, bounds))])
        return rows

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        from vlmrl.evals.score.terminal import table

        title = f"{self.suite.id} v{self.suite.version}"
        tables = [table(self._cells(task), title=f"{title}: {task.id}") for task in self.suite.tasks]
        overview = [table(self.overview(), title=title)] if len(self.suite.tasks) > 1 else []
        return Group(*tables, *overview, *(Text(note) for note in self.notes))

    def markdown(self) -> str:
        """Write a heading and a table per task."""
        title = f"{self.suite.id} v{self.suite.version}"
        parts = [f"## {title}\n\n{markdown(self.overview())}"] if len(self.suite.tasks) > 1 else []
        parts += [f"## {title}: {task.id}\n\n{markdown(self._cells(task))}" for task in self.suite.tasks]
        return "\n".join([*parts, *(f"- {note}\n" for note in self.notes)])

    def json(self) -> dict[str, Any]:
        """Collect everything but the records, as JSON values."""
        return {
            "suite": self.suite.model_dump(mode="json"),
            "model": self.model,
            "fingerprint": self.fingerprint,
            "processor": self.processor,
            "vlmrl": __version__,
            "macro": self.macro(),
            "notes": list(self.notes),
            "tasks": {name: dataclasses.asdict(summary) for name, summary in self.summaries.items()},
        }

    def _cells(self, task: Task) -> list[list[str]]:
        summary = self.summaries[task.id]
        grouped = [name for name in LABELS if name.startswith(("pass@", "maj@", JUDGED)) and name in summary.metrics]
        extra = tuple(name for name in grouped if name not in task.metrics)
        return summary_cells({self.model: summary}, (*task.metrics, *extra))


def evaluate_suite(
    checkpoint: Path,
    suite: str | Path | Suite,
    out: Path,
    *,
    data_root: Path | None = None,
    device: str = "auto",
    dtype: str = "float32",
    engine: str = "hf",
    changes: Changes | None = None,
    watch: EvalCallbacks | None = None,
) -> SuiteResult:
    """Evaluate a checkpoint on a suite: `vlmrl eval` from Python. Writes what `evaluate_model` writes.

    Args:
        checkpoint: model folder (`stages/<name>` or `final` of a run), or a finished run's directory.
        suite: name of one of ours, a YAML file, or one that is loaded.
        engine: what generates: the reference engine, or vLLM in this process.

    Raises:
        ConfigError: suite or checkpoint cannot be used, or vLLM cannot run it here.
        DataError: rows or media of a task cannot be used; nothing leaves the denominator in silence.
    """
    checked = suite if isinstance(suite, Suite) else load_suite(suite_path(suite))
    data_root_of(checked, data_root)  # before the model is loaded
    with loaded(checkpoint, engine, (changes or Changes()).all_of(checked), device=device, dtype=dtype) as model:
        return evaluate_model(model, checked, out, data_root=data_root, changes=changes, watch=watch)


def loaded(checkpoint: Path, engine: str, tasks: Sequence[Task], *, device: str, dtype: str) -> AbstractContextManager[Model]:
    """Load a checkpoint in this process, for these tasks, and release it afterwards.

    Raises:
        ConfigError: there is none, or the engine cannot run it here.
    """
    return ENGINES[engine](checkpoint, tasks, device=device, dtype=dtype)


def evaluate_model(
    model: Model,
    suite: Suite,
    out: Path,
    *,
    data_root: Path | None = None,
    changes: Changes | None = None,
    collective: Collective = SINGLE_PROCESS,
    judge: Mapping[str, Any] | None = None,
    watch: EvalCallbacks | None = None,
) -> SuiteResult:
    """Evaluate a model on every row of every task.

    Writes `<out>/<task>.jsonl` (records), `summary.json` and `results.md`.

    Args:
        data_root: replaces the suite's; needed when that is `toy`.
        changes: to the suite's settings.
        collective: processes that share the questions.
        judge: endpoint (docs/judges.md) of a judge of thoughts: are they consistent with the answer, and do they say what is seen?

    Raises:
        DataError: rows or media of a task cannot be used; nothing leaves the denominator in silence.
    """
    changes = changes or Changes()
    # the result names the tasks as they were asked, with the caller's changes
    suite = suite.model_copy(update={"tasks": changes.all_of(suite)})
    root = data_root_of(suite, data_root)
    fs.mkdir(out)
    one = SuiteEvaluation(
        model=model,
        out=out,
        root=root,
        batch_prompts=suite.batch_prompts,
        seed=changes.seed,
        collective=collective,
        judge=judge,
        watch=watch or EvalCallbacks(),
    )
    records = {task.id: one.answers(task) for task in suite.tasks}
    result = SuiteResult(
        suite=suite,
        model=model.name,
        fingerprint=one.fingerprint,
        summaries={name: summarize(rows, seed=_SEED) for name, rows in records.items()},
        records=records,
        out=out,
        notes=tuple(one.notes),
        processor=type(model.bundle.processor).__name__,
    )
    if collective.rank() == 0:
        # kept beside the numbers, so that a records file that was changed later is noticed when it is read (`read_verified`)
        files = {f"{name}.jsonl": sha256((out / f"{name}.jsonl").read_bytes()) for name in records}
        fs.write_text(out / "summary.json", json.dumps(result.json() | {"files": files}, indent=1, sort_keys=True) + "\n")
        fs.write_text(out / "results.md", result.markdown())
    return result


@dataclass(kw_only=True)
class SuiteEvaluation:
    """One model on the tasks of a suite, one after the other."""

    model: Model
    out: Path
    root: Path
    batch_prompts: int
    seed: int
    collective: Collective
    judge: Mapping[str, Any] | None
    watch: EvalCallbacks
    notes: list[str] = field(default_factory=list[str])
    fingerprint: str = ""

    def answers(self, task: Task) -> list[Record]:
        """Answer a task; its records, judged where there is a judge."""
        store = open_store(task, self.model.bundle)
        try:
            return self._answers(task, store)
        finally:
            store.close()

    def _answers(self, task: Task, store: MediaStore) -> list[Record]:
        file = self.out / f"{task.id}.jsonl"
        first = self.collective.rank() == 0
        engine = self.model.engine(task, store, file)
        if task.environment is not None:
            return EPISODES["task"](self, task, store, engine, file)
        # the first rank alone writes the quarantine of bad rows
        prompts, whole = task_prompts(task, self.root, store, self.model.bundle, self.out if first else None)
        self.notes += count_notes(task, len(prompts), whole)
        progress = self.watch.progress
        records = evaluate(
            engine,
            prompts,
            eval_options(task, batch_prompts=self.batch_prompts, seed=self.seed),
            out=file,
            model=self.model.name,
            tokenizer_len=lambda text: len(self.model.bundle.tokenize(text)),
            collective=self.collective,
            progress=None if progress is None else lambda done, total: progress(task.id, done, total),
        )
        self.fingerprint = engine.fingerprint
        if self.judge is not None:
            records, missing = _judged(records, prompts, store, self.judge, file, self.collective)
            self.notes += [f"{task.id}: {count} verdicts of the judge are missing ({reason})" for reason, count in missing.items()]
        if self.watch.answered is not None and first:
            self.watch.answered(prompts, store)
        return records


def eval_options(task: Task, *, batch_prompts: int, seed: int) -> EvalOptions:
    """Take from a task how it is asked."""
    return EvalOptions(
        settings=GenerationSettings(max_new_tokens=task.max_new_tokens, temperature=task.temperature, top_p=task.top_p),
        batch_prompts=batch_prompts,
        samples=task.samples,
        seed=seed,
        extraction=task.extraction,
        scoring=task.scoring,
        task_version=task.version,
    )


def _judged(
    records: list[Record], prompts: Sequence[Prompt], store: MediaStore, judge: Mapping[str, Any], file: Path, collective: Collective
) -> tuple[list[Record], dict[str, int]]:
    """The records with a judge's verdicts on their thoughts, and why verdicts are missing, on every rank; the file then holds these.
    The first rank asks."""

    def ask() -> tuple[list[Record], dict[str, int]]:
        done, missing = JUDGES["thoughts"](records, prompts, endpoint=judge, pixels=store.get_key)
        fs.write_bytes(file, b"".join(record.line() for record in done))
        return done, missing

    return collective.gather(collective.run_synchronized(lambda: ask() if collective.rank() == 0 else ([], {})))[0]


def count_notes(task: Task, asked: int, whole: int) -> list[str]:
    """Note what to say of a task whose rows are not all of the official ones."""
    if task.official_count is not None and whole != task.official_count:
        return [f"{task.id}: {whole} rows, the official set has {task.official_count}; its numbers are not comparable with published ones"]
    if asked < whole:
        return [f"{task.id}: {asked} of {whole} rows (limit); its numbers are not comparable with published ones"]
    return []


def subset(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """Choose at most `limit` samples, in their order: those whose ids have the smallest hashes. A smaller limit gives a part of a larger
    one's, whatever the order of the file."""
    if limit is None or limit >= len(samples):
        return list(samples)
    ranked = sorted(samples, key=lambda s: hashlib.sha256(s.id.encode()).digest())[:limit]
    chosen = {s.id for s in ranked}
    return [s for s in samples if s.id in chosen]


def task_samples(task: Task, root: Path, out: Path | None) -> tuple[list[Sample], int]:
    """Load the rows that a task asks. Bad rows go to `<out>/<task>.quarantine.jsonl`.

    Returns:
        (rows that are asked, number of rows in all).

    Raises:
        DataError: the file is missing (with the command that makes it), or a row is not valid or not of the task's kind.
    """
    source = task.rows
    path = root / source.path
    command = task.make_command()
    # before loading, whose message could only say that there is no file
    if command is not None and not path.exists():
        made = command.replace("DATA_ROOT", str(root))
        raise DataError(f"task '{task.id}': {path} is not there; with the official download in ROOT this makes it: {made}")
    samples = load_source(
        path,
        media_root=source.media_root,
        dedupe="error",
        max_bad_rows=None,
        quarantine=None if out is None else out / f"{task.id}.quarantine.jsonl",
        options=ImportOptions.of(source, root),
    )
    asked = subset(samples, task.limit)
    _report(task, len(asked), [problem for sample in asked if (problem := _misfit(task, sample))])
    return asked, len(samples)


def _misfit(task: Task, sample: Sample) -> str | None:
    """Why a row is not one of the task's; None if it is."""
    where = f"row '{sample.id}' ({sample.source})"
    if task.environment is None and sample.answer_type not in task.answer_types:
        return f"{where}: answer type '{sample.answer_type}', the task's is '{' or '.join(task.answer_types)}'"
    frame = sample.meta.get("frame")
    if task.frame is not None and frame is not None and frame != task.frame:
        return f"{where}: coordinates in '{frame}', the task's are in '{task.frame}'"
    return None


def _report(task: Task, count: int, problems: Sequence[str]) -> None:
    if problems:
        more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listing = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
        raise DataError(f"task '{task.id}': {len(problems)} of {count} rows cannot be evaluated; fix or remove them{listing}{more}")


def task_prompts(task: Task, root: Path, store: MediaSource, bundle: ProcessorBundle, out: Path | None) -> tuple[list[Prompt], int]:
    """Make prompts of the rows that a task asks.

    Returns:
        (prompts, number of rows in all).

    Raises:
        DataError: with the rows that cannot be used and why.
    """
    encoder = Encoder.of(bundle, store, root, max_prompt_tokens=task.max_prompt_tokens, prompt=task.prompt)
    samples, whole = task_samples(task, root, out)
    prompts: list[Prompt] = []
    problems: list[str] = []
    for sample in samples:
        try:
            prompts.append(encoder.encode(sample, task.asked))
        except (MediaError, RowError) as error:
            problems.append(f"row '{sample.id}' ({sample.source}): {error}")
    _report(task, len(samples), problems)
    return prompts, whole
