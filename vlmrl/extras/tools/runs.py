"""`vlmrl list runs`: what runs a folder holds, and how far they are."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vlmrl.cli.names import Wanted
from vlmrl.errors import ConfigError

if TYPE_CHECKING:
    from vlmrl.run.listing import RunLine

COLOURS = {"finished": "green", "running": "cyan", "stopped": "yellow", "elsewhere": "yellow"}


def runs(wanted: Wanted) -> None:
    """List the runs of a folder: finished, running or stopped, at which step, and when something was last written.

    Raises:
        ConfigError: there is no such folder.
    """
    from vlmrl.run.listing import runs_in

    root = Path(wanted.name or "runs")
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder; runs are in the recipe's run.root, which is 'runs' where it says nothing")
    found = runs_in(root)
    if wanted.as_json:
        typer.echo(json.dumps([line.json() for line in found], indent=1))
        return
    if not found:
        typer.echo(f"{root}: no runs")
        return
    show(found)


def show(found: list[RunLine]) -> None:
    """The table on the terminal, and below it what cannot be read."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, now = Console(highlight=False), time.time()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("run", "status", "stage", "step", "written", "starts", "model"):
        table.add_column(name, overflow="fold", no_wrap=name in ("status", "step", "written", "starts"))
    for line in found:
        table.add_row(
            Text(str(line.path), overflow="fold"),
            Text(line.status, style=COLOURS[line.status]),
            Text(line.stage or "-", overflow="fold"),
            Text("-" if line.step is None else f"{line.step}/{line.steps if line.steps is not None else '?'}"),
            Text("-" if line.wall is None else ago(now - line.wall)),
            Text(str(line.starts)),
            Text(line.model or "-", overflow="fold"),
        )
    console.print(table)
    for line in found:
        for text in (line.holder, line.problem):
            if text is not None:
                console.print(Text(f"{line.path}: {text}"), soft_wrap=True)
    console.print(Text(f"look at one: vlmrl view {shlex.quote(str(found[0].path))}"), soft_wrap=True)


def ago(seconds: float) -> str:
    """`12 s ago`, `5 min ago`, `3 h ago`, `2 days ago`."""
    seconds = max(0.0, seconds)
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (word != "days" and seconds >= size):
            return f"{seconds // size:.0f} {word} ago"
    return f"{seconds:.0f} s ago"
