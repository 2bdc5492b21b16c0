"""Wordings of a question: a YAML file from names to what is otherwise than in the recipe.

own: {}                                        # as the recipe says
direct: {prompt: null, answer_format: answer_only}   # null: the question and our sentence
bare: {prompt: "{{ question }} Answer:", answer_format: answer_only, extraction: lenient}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vlmrl.config import tree
from vlmrl.config.names import task_problem
from vlmrl.config.schema import Config, PositiveInt, RolloutStage, Section
from vlmrl.data.wording import prompt_problem
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.suite import Suite
from vlmrl.evals.ask.tasks import AnswerFormat, Task
from vlmrl.evals.score.extraction import Extraction
from vlmrl.evals.score.summary import Interval
from vlmrl.registry import nearest


class Wording(Section):
    """One way to ask; what it does not say is the recipe's."""

    prompt: str | None = None
    """As `data.prompt`; null: the question and our sentence."""
    answer_format: AnswerFormat | None = None
    max_new_tokens: PositiveInt | None = None
    extraction: Extraction = "strict"
    """How answers are read; all but `strict` is asked, never trained."""

    @property
    def trainable(self) -> bool:
        """Whether rewards, which read tags, could see its answers."""
        return self.extraction == "strict"

    def task(self, name: str, task: Task, limit: int | None) -> Task:
        """The task that asks so."""
        given = {key: getattr(self, key) for key in ("answer_format", "max_new_tokens") if getattr(self, key) is not None}
        words = {"prompt": self.prompt} if "prompt" in self.model_fields_set else {}
        return task.model_copy(update={"id": name, "limit": limit, "extraction": self.extraction, **words, **given})

    def overrides(self, cfg: Config) -> list[str]:
        """What a recipe is given to be trained so: `key=value`."""
        out = [f"data.prompt={json.dumps(self.prompt, ensure_ascii=False)}"] if "prompt" in self.model_fields_set else []
        if self.answer_format is not None:
            out += [f"stages.{stage.name}.answer_format={self.answer_format}" for stage in cfg.stages]
        if self.max_new_tokens is not None:
            rolled = [stage.name for stage in cfg.stages if isinstance(stage, RolloutStage)]
            out += [f"stages.{name}.rollout.max_new_tokens={self.max_new_tokens}" for name in rolled]
            out.append(f"eval.max_new_tokens={self.max_new_tokens}")
        return out


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was found."""

    best: str
    values: Mapping[str, Interval]
    """Name -> the primary metric of its task."""
    metric: str


def read_wordings(path: Path) -> dict[str, Wording]:
    """Read the file.

    Raises:
        ConfigError: with every problem: it is no mapping of two or more, an unknown key, a prompt that is no template, or none that
            could be trained with.
    """
    problems: list[str] = []
    root = tree.read(path, problems)
    if problems:
        raise ConfigError(problems)
    found = root.plain()
    if not isinstance(found, dict) or len(found) < 2:
        raise ConfigError(f"{path}: expected a mapping from two or more names to wordings")
    out: dict[str, Wording] = {}
    for name, value in found.items():
        known = list(Wording.model_fields)
        if not isinstance(value, dict):
            problems.append(f"{path}: {name}: expected a mapping of {', '.join(known)}")
            continue
        if wrong := [str(key) for key in value if key not in known]:
            problems.append(f"{path}: {name}: unknown key '{wrong[0]}'{nearest(wrong[0], known)} (known: {', '.join(known)})")
            continue
        try:
            out[str(name)] = Wording.model_validate(value)
        except ValueError as error:  # pydantic's ValidationError; its first line is a count
            problems.append(f"{path}: {name}: {' '.join(' '.join(str(error).splitlines()[1:3]).split())}")
            continue
        prompt = out[str(name)].prompt
        for problem in (task_problem(str(name)), None if prompt is None else prompt_problem(prompt)):
            problems += [] if problem is None else [f"{path}: {name}: {problem}"]
    if out and not any(one.trainable for one in out.values()):
        problems.append(f"{path}: no wording could be trained with; leave `extraction` out of one")
    if problems:
        raise ConfigError(problems)
    return out


def suite_of(wordings: Mapping[str, Wording], task: Task, *, limit: int | None, plugins: tuple[str, ...]) -> Suite:
    """The suite that asks one task in all wordings."""
    tasks = tuple(one.task(name, task, limit) for name, one in wordings.items())
    return Suite(id="prompts", version=1, title="the base model under several wordings", tasks=tasks, plugins=plugins)


def choose(wordings: Mapping[str, Wording], values: Mapping[str, Interval], metric: str) -> Choice:
    """The best of those that could be trained with; of equal ones the first."""
    best = max((name for name, one in wordings.items() if one.trainable), key=lambda name: values[name].mean)
    return Choice(best=best, values=values, metric=metric)
