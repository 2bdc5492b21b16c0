"""The command `list`: methods, recipes, suites, environments, runs and caches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import Wanted, extra
from vlmrl.errors import ConfigError

LISTS = {
    "recipes": "vlmrl.extras.tools.files.recipes",
    "suites": "vlmrl.extras.tools.files.suites",
    "environments": "vlmrl.extras.agents.command.environments",
    "runs": "vlmrl.extras.tools.runs.runs",
    "caches": "vlmrl.extras.toy.cache.caches",
}
"""What is listed beside methods -> the function that lists it, which is given what was asked for (`Wanted`)."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_)


def list_(
    what: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(LISTS)}; algorithm; a slot, as advantage or reward; or one method", show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Argument(help="Only this one; of runs their folder", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    as_papers: Annotated[bool, typer.Option("--papers", help="Methods as Markdown with sources; with --json every paper.")] = False,
    plugin: Annotated[list[str] | None, typer.Option(help="Also import this module, for what it registers.", show_default=False)] = None,
    recipe: Annotated[Path | None, typer.Option(help="Also import the plug-ins of this recipe.", show_default=False)] = None,
    data_root: Annotated[Path | None, typer.Option(help="suites NAME: also say which rows are there.", show_default=False)] = None,
    cache: Annotated[Path | None, typer.Option(help="caches: the recipe's toy.cache.", show_default=False)] = None,
) -> None:
    """List what a recipe or a command can name. Without an argument: every preset and method, the core first, a line each.

    Example: vlmrl list reward temporal_iou
    """
    for option, value, of in (("--data-root", data_root, "suites"), ("--cache", cache, "caches")):
        if value is not None and what != of:
            raise ConfigError(f"{option} belongs to: vlmrl list {of}")
    if what in LISTS:
        if as_papers or recipe is not None:
            raise ConfigError(f"vlmrl list {what} takes neither --papers nor --recipe; they are of methods")
        extra(LISTS[what])(Wanted(name=name, as_json=as_json, plugins=tuple(plugin or ()), data_root=data_root, cache=cache))
        return
    from vlmrl.extras.tools.methods import methods

    methods(what, name, as_json=as_json, as_papers=as_papers, plugins=list(plugin or ()), recipe=recipe, others=list(LISTS))
