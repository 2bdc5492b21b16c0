"""A task defines one benchmark: its rows, how they are asked, the metrics, and published figures.

A task is a YAML file `evals/tasks/<id>.yaml` (or a mapping within a suite); unknown keys are errors. It holds no code,
but may name modules that do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.episode import EPISODE
from vlmrl.config.names import PlainName, task_problem
from vlmrl.config.schema import MediaSection, PositiveInt, Probability, Section
from vlmrl.config.section import EnvironmentMethod, HistorySection, SourceSection
from vlmrl.data.wording import prompt_problem
from vlmrl.evals.score.extraction import Extraction
from vlmrl.evals.score.measures import LABELS, allowed_metrics, metrics_of
from vlmrl.paths import shipped, shown
from vlmrl.plugins import import_methods
from vlmrl.protocols import environment
from vlmrl.registry import Catalogue, argument_problems, nearest, parameters
from vlmrl.types import CoordinateFrame

AnswerFormat = Literal["think", "answer_only", "think_or_not"]


EPISODES: Catalogue[Callable[..., Any]] = Catalogue("evaluation of episodes")
"""What evaluates where there is an environment: `task` of a suite (`ask.run`), `task_of_run` and `held_out` rows of a run (`run.evaluate`),
and the page `replay` of a task's records."""

RENAMED = {"made": "prepare", "view": "extraction", "template": "answer_format"}
"""Key of a task before -> now. Of `view`, `tagged` is `strict` now and `view` is `lenient`."""


FILE, SECTION = "file", "section"
"""What the `source` of a task may be; pydantic says them where it tells of a problem."""


def _kind_of_source(value: object) -> str:
    return FILE if isinstance(value, str) else SECTION


Source = Annotated[Annotated[str, Tag(FILE)] | Annotated[SourceSection, Tag(SECTION)], Discriminator(_kind_of_source)]


class Prepare(Section):
    """How the rows come to be: `python data/<dataset>/prepare.py ROOT OUT --split <split> --<option> <value>`."""

    dataset: PlainName = Field(description="Folder below data/ with card.md and prepare.py")
    split: PlainName = Field(description="Split that prepare.py writes")
    options: dict[str, str] = Field(default_factory=dict, description="Its further options")


class Published(Section):
    """A figure from elsewhere. Numbers of different harnesses are not interchangeable, so the harness stands beside it."""

    model: str = Field(description="Whose figure it is")
    metric: str = Field(description="What was measured, in the words of the source")
    value: float | None = Field(default=None, description="As printed in the source; null where it is only known that there is one")
    source: str = Field(description="Paper or page")
    harness: str = Field(description="Program that measured it; `not stated` where the source does not say")


class Task(Section):
    """One set of rows with one way of asking."""

    id: str = Field(description="Name of its records file and of its row in tables")
    version: PositiveInt = Field(default=1, description="Raise it with every change that moves numbers")
    title: str = Field(default="", description="What it is, in a few words")
    source: Source = Field(
        default="",
        description="File of rows, relative to the data root, or a mapping with the keys of a recipe's `source`; without it a task's "
        "environment gives its own",
    )
    media_root: str = Field(
        default=".", description="Folder that media paths are relative to, relative to the data root; of a `source` that is a file"
    )
    prepare: Prepare | None = Field(default=None, description="How to make the rows from the official download")
    official_count: PositiveInt | None = Field(default=None, description="Rows of the whole task; another number is reported")
    answer_format: AnswerFormat | tuple[AnswerFormat, ...] = Field(description="Answer format that is asked for; several make a task each")
    answer_type: str | tuple[str, ...] = Field(description="Of the rows; decides how answers are read and scored")
    frame: CoordinateFrame | None = Field(
        default=None, description="Coordinates of gold answers and of what is asked for; the rows must say the same"
    )
    max_new_tokens: PositiveInt = Field(description="Longest answer")
    samples: PositiveInt = Field(default=1, description="Answers per row")
    temperature: float = Field(default=0.0, ge=0, description="0 is greedy; several answers need more")
    top_p: Probability = Field(default=1.0, description="Nucleus of sampling")
    limit: PositiveInt | None = Field(default=None, description="Use only N rows, those with the smallest hash of their id: subsets nest")
    metrics: tuple[str, ...] = Field(default=(), description="Columns of the table; by default those of the answer type")
    primary: str = Field(default="", description="The metric that stands for the task; by default the first of the answer type's own")
    extraction: Extraction = Field(
        default="strict",
        description="`lenient` also reads answers without tags, for foreign models; `first` and `whole` are those of other programs",
    )
    scoring: dict[str, Any] = Field(
        default_factory=dict, description="Options of the answer type's own scoring, where it has any (arguments of its `score`)"
    )
    protocol: str = Field(default="", description="Protocol (`evals/protocols`) that some of these settings are from")
    prompt: str | None = Field(
        default=None,
        description="Jinja text of what is asked, as a recipe's data.prompt (docs/data.md); none: the question and our sentence",
    )
    max_prompt_tokens: PositiveInt = Field(default=8192, description="A longer prompt is an error")
    media: MediaSection = MediaSection()
    environment: EnvironmentMethod | None = Field(
        default=None, description="World whose episodes are played (docs/environments.md); the answer type is then `episode`"
    )
    history: HistorySection = HistorySection()
    episodes: PositiveInt = Field(
        default=100, description="Episodes to play of the environment's own tasks, in turn; a source has its rows"
    )
    episode_seed: int = Field(default=0, ge=0, description="Of the environment's seeds; those of training are others, whatever it is")
    published: tuple[Published, ...] = Field(default=(), description="Figures from elsewhere")
    plugins: tuple[str, ...] = Field(default=(), description="Python modules to import, for their answer types and metrics")

    @property
    def answer_types(self) -> tuple[str, ...]:
        return (self.answer_type,) if isinstance(self.answer_type, str) else self.answer_type

    @property
    def answer_formats(self) -> tuple[AnswerFormat, ...]:
        return (self.answer_format,) if isinstance(self.answer_format, str) else self.answer_format

    @property
    def file(self) -> str:
        """The file of rows; empty where there is none."""
        return self.source if isinstance(self.source, str) else self.source.path

    @property
    def rows(self) -> SourceSection:
        """Describe how the rows are read, in the keys of a recipe. Rows of other trainers that say none have the task's answer type."""
        section = SourceSection(path=self.source, media_root=self.media_root) if isinstance(self.source, str) else self.source
        # with several types nothing says which one a foreign row has; episodes have none
        if section.answer_type is not None or len(self.answer_types) != 1 or self.environment is not None:
            return section
        return section.model_copy(update={"answer_type": self.answer_types[0]})

    @property
    def asked(self) -> AnswerFormat:
        """The one answer format of a task after `modes`."""
        return self.answer_formats[0]

    def make_command(self) -> str | None:
        """Write the command that makes the rows, with ROOT for the folder of the official download; None where nothing is known.

        Returns:
            A shell command, with DATA_ROOT for the folder of the data.
        """
        if self.prepare is None:
            return None
        options = "".join(f" --{name} {value}" for name, value in self.prepare.options.items())
        out = Path(self.file).parent.as_posix()
        script = shown(shipped("data", self.prepare.dataset, "prepare.py"))
        return f"python {shlex.quote(script)} ROOT DATA_ROOT/{out} --split {self.prepare.split}{options}"


def with_defaults(task: Task) -> Task:
    """Fill in the metrics of the task's answer types, where it names none; unchanged if an answer type is unknown."""
    if not task.answer_types or any(kind not in ANSWER_TYPES for kind in task.answer_types):
        return task
    # of several answer types only the main score, whatever each calls it, means something over all rows
    first = ANSWER_TYPES[task.answer_types[0]].metrics[0].name if len(task.answer_types) == 1 else "score"
    return task.model_copy(update={"metrics": task.metrics or metrics_of(*task.answer_types), "primary": task.primary or first})


def modes(task: Task) -> list[Task]:
    """Make a task per answer format: `<id>@<answer_format>` where there are several."""
    if len(task.answer_formats) == 1:
        return [task.model_copy(update={"answer_format": task.asked})]
    return [
        task.model_copy(update={"id": f"{task.id}@{answer_format}", "answer_format": answer_format})
        for answer_format in task.answer_formats
    ]


def other_wording(prompt: str | None, tasks: Iterable[Task]) -> list[str]:
    """Note what to say where a model was trained with a wording of its own (`data.prompt`) and tasks ask with another."""
    others = [task.id for task in tasks if task.environment is None and task.prompt != prompt]
    if prompt is None or not others:
        return []
    return [
        f"{', '.join(others)}: asked in other words than data.prompt, with which the model was trained; `prompt` of a task, or of a "
        "protocol, says how it is asked"
    ]


def check_task(task: Task) -> list[str]:
    """List what is wrong with a task beyond types; empty when nothing is."""
    where = f"tasks.{task.id}"
    out: list[str] = []
    if (problem := task_problem(task.id)) is not None:
        out.append(f"tasks: id {problem}")
    unknown = [problem for kind in task.answer_types if (problem := ANSWER_TYPES.problem(kind)) is not None]
    out += [f"{where}.answer_type: {problem}" for problem in unknown]
    for key, values in (("answer_type", task.answer_types), ("answer_format", task.answer_formats)):
        if not values or len(set(values)) < len(values):
            out.append(f"{where}.{key}: {'is empty' if not values else 'names one twice'}")
    known = list(LABELS)
    # with an unknown type every known metric passes: one mistake is told once
    own = allowed_metrics(*task.answer_types) if task.answer_types and not unknown else tuple(known)
    for name in (*task.metrics, *([task.primary] if task.primary else [])):
        if name not in known:
            out.append(f"{where}: unknown metric '{name}'{nearest(name, known)} (known: {', '.join(known)})")
        elif name not in own:
            of = " and ".join(f"'{kind}'" for kind in task.answer_types)
            out.append(f"{where}: metric '{name}' does not apply to answer type {of} (it has: {', '.join(own)})")
    if task.primary in known and task.primary not in task.metrics:
        out.append(f"{where}: primary '{task.primary}' is not among its metrics")
    out += [f"{where}: {problem}" for problem in _episode_problems(task)]
    for kind in () if unknown else task.answer_types:
        # the arguments of `score` are the schema of `scoring`
        options = parameters(f"answer type '{kind}'", ANSWER_TYPES[kind].score)
        out += argument_problems(f"answer type '{kind}'", options, task.scoring, f"{where}.scoring")
    if task.prompt is not None and (problem := prompt_problem(task.prompt)) is not None:
        out.append(f"{where}.prompt: {problem}")
    if task.samples > 1 and task.temperature == 0:
        out.append(f"{where}: {task.samples} samples at temperature 0 are {task.samples} times the same answer; set temperature")
    return out


def _episode_problems(task: Task) -> list[str]:
    """What is wrong with a task as episodes, or as one without any."""
    history, plays = task.history, task.environment is not None
    out: list[str] = []
    # episodes are scored while they are played: neither word means anything without the other
    if plays != (task.answer_types == (EPISODE,)):
        out.append(f"answer_type '{EPISODE}' and an environment belong together; give both or neither")
    if plays and task.prompt is not None:
        out.append("prompt: an environment says itself what is asked; remove it")
    if not isinstance(task.source, str) and task.media_root != ".":
        out.append("media_root stands within `source` where that is a mapping: source: {path: ..., media_root: ...}")
    if not plays and not task.file:
        out.append("source: is missing; a task without an environment asks the rows of a file")
    if not plays and history != HistorySection():
        out.append("history says what of an episode's turns stands in a prompt, and there is no environment")
    if task.environment is not None:
        import_methods("environment")
        name, arguments = task.environment.name, task.environment.arguments
        wrong = environment.problems(name, arguments, "environment")
        out += wrong or environment.get(name).extra.get("refuses", lambda *_: ())(arguments, task)
    if history.screens is None and (history.every != 1 or not history.actions):
        out.append("history.every and history.actions are of prompts that begin anew; give history.screens, or remove them")
    return out
