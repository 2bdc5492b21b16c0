"""Suites: which tasks a checkpoint is evaluated on, and how. A suite is a YAML file; unknown keys are errors.

id: toy_video
version: 1
data_root: toy
tasks:
  - {id: grounding, source: test.jsonl, template: think_or_not, answer_type: time_span, max_new_tokens: 64}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from vlmrl.config import tree
from vlmrl.config.schema import MediaSection, PositiveInt, Section
from vlmrl.config.tree import Node
from vlmrl.errors import ConfigError
from vlmrl.evals.measures import METRICS, OF_TYPE, metrics_of
from vlmrl.evals.scorers import SCORERS
from vlmrl.registry import nearest


class Task(Section):
    """One set of rows with one answer format."""

    id: str
    """Name of its records file and of its row in tables."""
    source: str
    """JSONL or Parquet file of rows, relative to the suite's data root."""
    media_root: str = "."
    """Folder that media paths are relative to, relative to the data root."""
    template: Literal["think", "answer_only", "think_or_not"]
    answer_type: str
    """Of every row; decides how answers are read and scored."""
    max_new_tokens: PositiveInt
    limit: PositiveInt | None = None
    """Use only the first N rows."""
    metrics: tuple[str, ...] = ()
    """Columns of the table; all are in summary.json. By default those of the answer type."""
    primary: str = ""
    """The metric that stands for the task. By default the first of the answer type's own."""
    max_prompt_tokens: PositiveInt = 8192
    media: MediaSection = MediaSection()


class Suite(Section):
    """Tasks that are reported together."""

    id: str
    version: PositiveInt
    """Raise it with every change that moves numbers."""
    data_root: str
    """Folder of the data, relative to the working directory; `toy` is the generated world."""
    batch_prompts: PositiveInt = 32
    """Prompts generated for at a time. Part of the suite, because the last bits of batched kernels may depend on it."""
    tasks: tuple[Task, ...]


def load_suite(path: Path) -> Suite:
    """Read and check a suite.

    Raises:
        ConfigError: with every problem, each with its file and line.
    """
    problems: list[str] = []
    root = tree.read(path, problems)
    if problems:
        raise ConfigError(problems)
    try:
        suite = Suite.model_validate(_tuples(root.plain()))
    except ValueError as error:  # pydantic's ValidationError
        raise ConfigError(_explain(error, root)) from error
    suite = suite.model_copy(update={"tasks": tuple(_with_defaults(task) for task in suite.tasks)})
    problems = [f"{path}: {problem}" for problem in check(suite)]
    if problems:
        raise ConfigError(problems)
    return suite


def _with_defaults(task: Task) -> Task:
    """The task with the metrics of its answer type, where it names none."""
    if task.answer_type not in OF_TYPE:
        return task
    own = {"metrics": task.metrics or metrics_of(task.answer_type), "primary": task.primary or OF_TYPE[task.answer_type][0]}
    return task.model_copy(update=own)


def check(suite: Suite) -> list[str]:
    """What is wrong with a suite beyond types; empty when nothing is."""
    out: list[str] = [] if suite.tasks else ["tasks: is empty"]
    names = [task.id for task in suite.tasks]
    out += [f"tasks: id '{name}' is used twice" for name in sorted({n for n in names if names.count(n) > 1})]
    for task in suite.tasks:
        where = f"tasks.{task.id}"
        if not task.id or not all(c.isalnum() or c in "._-" for c in task.id) or task.id.startswith("."):
            out.append(f"{where}.id: {task.id!r} is not a plain file name")
        if task.answer_type not in SCORERS:
            out.append(f"{where}.answer_type: no evaluation for '{task.answer_type}'; there is: {', '.join(SCORERS)}")
        for name in (*task.metrics, *([task.primary] if task.primary else [])):
            if name not in METRICS:
                out.append(f"{where}: unknown metric '{name}'{nearest(name, list(METRICS))} (known: {', '.join(METRICS)})")
            elif task.answer_type in OF_TYPE and name not in metrics_of(task.answer_type):
                own = ", ".join(metrics_of(task.answer_type))
                out.append(f"{where}: metric '{name}' does not apply to answer type '{task.answer_type}' (it has: {own})")
        if task.primary in METRICS and task.primary not in task.metrics:
            out.append(f"{where}: primary '{task.primary}' is not among its metrics")
    return out


def _tuples(value: Any) -> Any:
    """YAML has lists where the frozen models have tuples."""
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value


def _explain(error: Any, root: Node) -> list[str]:
    """Each problem that pydantic found, as `file:line: key: what`."""
    out: list[str] = []
    for item in error.errors(include_url=False):
        node = root
        for part in item["loc"]:
            inner: Any = node.value
            there = part in inner if isinstance(inner, dict) else isinstance(inner, list) and isinstance(part, int) and part < len(inner)
            if not there:
                break
            node = inner[part]
        name = str(item["loc"][-1]) if item["loc"] else ""
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            fields = list((Suite, Task, MediaSection)[min(2, len(item["loc"]) // 2)].model_fields)
            out.append(f"{node.origin}: {where}: unknown key '{name}'{nearest(name, fields)} (known: {', '.join(fields)})")
        else:
            out.append(f"{node.origin}: {where}: {item['msg']}, got {item['input']!r:.80}")
    return out
