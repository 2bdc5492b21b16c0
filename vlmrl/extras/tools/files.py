"""`vlmrl list recipes` and `vlmrl list suites`: what comes with the package, and the tasks of a suite."""

from __future__ import annotations

import json
import re
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from vlmrl.cli.names import Wanted, suite_said
from vlmrl.errors import VlmrlError
from vlmrl.paths import KINDS, find, missing, names, shipped, shown

if TYPE_CHECKING:
    from rich.console import Console


def recipes(wanted: Wanted) -> None:
    """Names of the recipes, each with the first sentence of its head; of one the whole head and where its file is.

    Raises:
        ConfigError: there is no such recipe.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    if wanted.name is not None:
        found = find("recipe", wanted.name)
        if found is None:
            raise missing("recipe", wanted.name)
        if wanted.as_json:
            console.print(Text(json.dumps({"name": found.path.stem, "file": shown(found.path), "about": head(found.path)})), soft_wrap=True)
            return
        console.print(Text(f"file: {shown(found.path)}"), soft_wrap=True)
        for line in head(found.path).splitlines():
            console.print(Text(line), soft_wrap=line.startswith(" "))  # a command that is broken into lines cannot be copied
        return
    folder = shipped(KINDS["recipe"])
    about = {name: re.split(r"(?<=[.:;]) ", head(folder / f"{name}.yaml"))[0].rstrip(":;") for name in names("recipe")}
    if wanted.as_json:
        console.print(Text(json.dumps([{"name": name, "about": text} for name, text in about.items()], indent=1)), soft_wrap=True)
        return
    _pairs(console, about)
    console.print(Text("What one is about, and its file: vlmrl list recipes NAME. Its settings: vlmrl check NAME --no-data --print"))


def head(path: Path) -> str:
    """The comment that a recipe begins with. Lines of a paragraph are joined; indented ones, which are commands, stay as they are."""
    out: list[str] = []
    for line in takewhile(lambda one: one.startswith("#"), path.read_text(encoding="utf-8").splitlines()):
        text = line[1:].removeprefix(" ")
        if out and out[-1] and text and not out[-1].startswith(" ") and not text.startswith(" "):
            out[-1] += f" {text}"
        else:
            out.append(text)
    return "\n".join(out).strip()


def _pairs(console: Console, rows: dict[str, str]) -> None:
    """Names, and beside each its text over as many lines as it needs."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(Text(name), Text(text, overflow="fold"))
    console.print(table)


def suites(wanted: Wanted) -> None:
    """The suites; or the tasks of one: what is asked, how it is scored, how its rows are made.

    Raises:
        ConfigError: there is no such suite.
        VlmrlError: rows are not below the data root that was named.
    """
    from rich.console import Console
    from rich.text import Text

    from vlmrl.evals.ask.suite import DEFINITIONS, load_suite

    console = Console(highlight=False)
    if wanted.name is None:
        found = [load_suite(path) for path in sorted((DEFINITIONS / "suites").glob("*.yaml"))]
        if wanted.as_json:
            listed = [{"name": one.id, "tasks": [task.id for task in one.tasks], "about": one.title} for one in found]
            console.print(Text(json.dumps(listed, indent=1)), soft_wrap=True)
            return
        _pairs(console, {one.id: f"{one.title} ({len(one.tasks)} task{'s' if len(one.tasks) > 1 else ''})" for one in found})
        console.print(Text("Tasks of one, and how their rows are made: vlmrl list suites NAME"))
        return
    tasks = load_suite(suite_said(wanted.name)).tasks
    lost = [task.file for task in tasks if wanted.data_root is not None and not (wanted.data_root / task.file).exists()]
    if wanted.as_json:
        listed = [
            {
                "name": task.id,
                "answers": list(task.answer_types),
                "primary": task.primary,
                "rows": task.file,
                "made_by": task.make_command(),
            }
            for task in tasks
        ]
        console.print(Text(json.dumps(listed, indent=1)), soft_wrap=True)
    else:
        for task in tasks:
            rows = (task.file or "played") + (" (missing)" if task.file in lost else "")
            console.print(Text(f"{task.id}: {' '.join(task.answer_types)}, scored by {task.primary}"))
            console.print(Text(f"  rows: {rows}"), soft_wrap=True)
        for protocol in dict.fromkeys(filter(None, (task.protocol for task in tasks))):
            console.print(Text(f"Asked and scored by protocol '{protocol}'."))
        made = dict.fromkeys(filter(None, (task.make_command() for task in tasks)))
        if made:
            console.print("How rows are made:")
        for command in made:
            console.print(Text(f"  {command}"), soft_wrap=True)  # a command that is cut or broken into lines cannot be copied
    if lost:
        raise VlmrlError(f"the rows of {len(lost)} task(s) are not below {wanted.data_root}")
