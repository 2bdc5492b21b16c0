"""A suite lists tasks that are reported together: a YAML file, of ours by its name (`evals/suites/<name>.yaml`). Unknown keys are errors.

id: mine
version: 1
data_root: /data
tasks:
  - cvbench_2d                                    # evals/tasks/cvbench_2d.yaml
  - {use: mmstar, limit: 64, samples: 4, temperature: 1.0}
  - {use: charades_sta, protocol: tempsamp_paper}  # evals/protocols/tempsamp_paper.yaml; `protocol` of the suite is that of all
  - {id: own, source: test.jsonl, answer_format: think, answer_type: time_span, max_new_tokens: 64}
  - id: foreign                                    # `source` as a recipe has it
    source: {path: val.parquet, media_folder: pictures, columns: {prompt: problem, answer: solution}}
    answer_format: think
    answer_type: exact_text
    max_new_tokens: 64
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from vlmrl import paths
from vlmrl.config import tree
from vlmrl.config.names import PlainName, same_names
from vlmrl.config.schema import MediaSection, PositiveInt, Section
from vlmrl.config.section import HistorySection, SourceSection
from vlmrl.config.tree import Node
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.tasks import FILE, RENAMED, SECTION, Prepare, Published, Task, check_task, modes, with_defaults
from vlmrl.paths import ResolvedFile
from vlmrl.plugins import import_plugins
from vlmrl.registry import nearest

DEFINITIONS = paths.shipped("evals")
"""Our `suites/` and `tasks/`."""
DATA_VARIABLE = "VLMRL_DATA"
"""Environment variable with the data root of suites that name none."""


class Suite(Section):
    """Tasks that are reported together."""

    id: PlainName = Field(description="Name of the suite")
    version: PositiveInt = Field(description="Raise it with every change that moves numbers")
    title: str = Field(default="", description="What it is, in a few words")
    data_root: str = Field(
        default="",
        description="Folder of the data, relative to the working directory; `toy`: the generated world; by default that of the suite's "
        "file, if the rows lie there, else $VLMRL_DATA",
    )
    toy_world: str = Field(default="grounding", description="Kind of the generated world, where `data_root` is `toy`")
    batch_prompts: PositiveInt = Field(
        default=32,
        description="Prompts generated for at a time. Part of the suite, because the last bits of batched kernels may depend on it",
    )
    protocol: str = Field(
        default="", description="Protocol (`evals/protocols`) by which its tasks are asked and scored; a task may name another"
    )
    tasks: tuple[Task, ...] = Field(description="Names of tasks, or mappings of their own")
    plugins: tuple[str, ...] = Field(default=(), description="Python modules to import, for all tasks")


def find_suite(name: str | Path) -> ResolvedFile:
    """Find the file of a suite: a path, or the name of one in the working folder or of ours.

    Raises:
        ConfigError: neither.
    """
    folder = DEFINITIONS / "suites"
    found = paths.find("suite", name, folder=folder)
    if found is None:
        raise paths.missing("suite", name, folder=folder)
    return found


def suite_path(name: str | Path) -> Path:
    """Find the file alone of `find_suite`."""
    return find_suite(name).path


def load_suite(path: Path, plugins: Sequence[str] = ()) -> Suite:
    """Read and check a suite, its tasks filled in: plug-ins (`plugins` are imported first), defaults, one task per answer format.

    Raises:
        ConfigError: with every problem, each with its file and line.
    """
    problems: list[str] = []
    root = tree.read(path, problems)
    _fill_in(root, path.parent, problems)
    if problems:
        raise ConfigError(problems)
    try:
        suite = Suite.model_validate(_tuples(root.plain()))
    except ValueError as error:  # pydantic's ValidationError
        raise ConfigError(_explain(error, root)) from error
    # after the tree is well formed and before tasks are checked: plug-ins bring the answer types and metrics that these name
    import_plugins(plugins, "--plugin")
    import_plugins(suite.plugins, f"{path}: plugins")
    tasks = [_prepared(task, (*plugins, *suite.plugins), f"{path}: tasks.{task.id}") for one in suite.tasks for task in modes(one)]
    suite = suite.model_copy(update={"tasks": tuple(tasks), "data_root": suite.data_root or _beside(tasks, path.parent)})
    problems = [f"{path}: {problem}" for problem in check(suite)]
    if problems:
        raise ConfigError(problems)
    return suite


def _prepared(task: Task, plugins: Sequence[str], where: str) -> Task:
    """The task with its defaults, and with the plug-ins of its suite, so that it can be asked and scored alone."""
    import_plugins(task.plugins, f"{where}.plugins")
    return with_defaults(task.model_copy(update={"plugins": (*plugins, *task.plugins)}))


def _beside(tasks: Sequence[Task], folder: Path) -> str:
    """The folder of a suite's file, if the rows of all its tasks are there; else nothing."""
    files = [task.file for task in tasks if task.file]
    # `file#500` and `folder@train` (`data.raw`) name a part of what lies there
    found = [(folder / file).exists() or (folder / re.split("[#@]", file)[0]).is_file() for file in files]
    return str(folder) if files and all(found) else ""


def data_root_of(suite: Suite, given: Path | None) -> Path:
    """Find where the suite's data lie.

    Raises:
        ConfigError: nobody says.
    """
    if given is not None:
        return given
    if all(not task.file for task in suite.tasks):
        return Path()  # episodes of the environments' own tasks read no files
    if suite.data_root == "toy":
        raise ConfigError(f"suite '{suite.id}': data_root is 'toy'; say where the generated world is (`vlmrl tools toy make` writes one)")
    root = suite.data_root or os.environ.get(DATA_VARIABLE, "")
    if not root:
        raise ConfigError(
            f"suite '{suite.id}': where are the data? Give --data-root, or set {DATA_VARIABLE} to the folder, or put all its rows beside it"
        )
    return Path(root).expanduser()


def check(suite: Suite) -> list[str]:
    """List what is wrong with a suite beyond types; empty when nothing is."""
    out: list[str] = [] if suite.tasks else ["tasks: is empty"]
    names = [task.id for task in suite.tasks]
    out += [f"tasks: id '{names[place]}' is used twice, by tasks {first} and {place}" for place, first in same_names(names).items()]
    return out + [problem for task in suite.tasks for problem in check_task(task)]


def task_names() -> list[str]:
    """List the names of our tasks."""
    return sorted(path.stem for path in (DEFINITIONS / "tasks").glob("*.yaml"))


def _fill_in(root: Node, folder: Path, problems: list[str]) -> None:
    """Put the definitions of named tasks in their place in the tree, over them the settings of a protocol, and over both what the suite
    says of them."""
    tasks, for_all = ((root.mapping or {}).get(key) for key in ("tasks", "protocol"))
    for place, item in enumerate(tasks.items or [] if tasks is not None else []):
        use = (item.mapping or {}).get("use")
        name = item.value if isinstance(item.value, str) else use.value if use is not None else None
        base = {} if name is None else _named(str(name), item.origin, problems).mapping or {}
        own = {key: value for key, value in (item.mapping or {}).items() if key != "use"}
        # the nearest word counts: of the task in the suite, of the task's own file, of the suite
        protocol = own.get("protocol") or base.get("protocol") or for_all
        asked = dict[str, Node]()
        if protocol is not None and protocol.value and (named := base.get("id") or own.get("id")) is not None:
            from vlmrl.evals.ask.protocol import protocol_settings  # few suites name one

            asked = protocol_settings(str(protocol.value), str(named.value), protocol.origin, problems, beside=folder) | {
                "protocol": protocol
            }
        if name is not None or asked:
            assert tasks is not None
            assert tasks.items is not None
            # later ones win: the task's file, the protocol, what the suite says of the task
            tasks.items[place] = Node({**base, **asked, **own}, item.origin)


def _named(name: str, origin: str, problems: list[str]) -> Node:
    path = DEFINITIONS / "tasks" / f"{name}.yaml"
    if name not in task_names():
        where = f"{origin}: " if origin else ""
        problems.append(f"{where}no task '{name}'{nearest(name, task_names())}; tasks are files in {path.parent}")
        return Node({}, origin)
    return tree.read(path, problems)


def _tuples(value: Any) -> Any:
    """YAML has lists where the frozen models have tuples."""
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value


_MODELS = {"media": MediaSection, "prepare": Prepare, "published": Published, "history": HistorySection, "source": SourceSection}


def _explain(error: Any, root: Node) -> list[str]:
    """Each problem that pydantic found, as `file:line: key: what`; the branches of a union are one problem."""
    out: list[str] = []
    for item in error.errors(include_url=False):
        # pydantic names the branch of a union that it tried; a reader of the YAML file knows of none
        unsaid = ("str", "tuple[str, ...]", FILE, SECTION)
        loc = tuple(part for part in item["loc"] if part not in unsaid and "literal[" not in str(part))
        node = _nearest(root, loc)
        where = ".".join(str(part) for part in loc)
        if item["type"] == "extra_forbidden":
            model = Suite if len(loc) == 1 else Task if len(loc) == 3 else _MODELS.get(str(loc[2]), Section)
            fields = list(model.model_fields)
            name = str(loc[-1])
            hint = f"; it is called '{RENAMED[name]}' now" if model is Task and name in RENAMED else nearest(name, fields)
            if model is Task and name in SourceSection.model_fields:
                hint = f"; it stands within 'source': source: {{path: ..., {name}: ...}}"
            text = f"{node.origin}: {where}: unknown key '{name}'{hint} (known: {', '.join(fields)})"
        else:
            got = "" if item["type"] == "value_error" else f", got {item['input']!r:.80}"  # a rule of ours says itself what it met
            text = f"{node.origin}: {where}: {item['msg'].removeprefix('Value error, ')}{got}"
        if not any(text.partition(": Input")[0] == known.partition(": Input")[0] for known in out):
            out.append(text)
    return out


def _nearest(root: Node, loc: tuple[Any, ...]) -> Node:
    """The node at a place of the tree, or the last one on the way that exists."""
    node = root
    for part in loc:
        inner: Any = node.value
        there = part in inner if isinstance(inner, dict) else isinstance(inner, list) and isinstance(part, int) and part < len(inner)
        if not there:
            break
        node = inner[part]
    return node
