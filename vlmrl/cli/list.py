"""The command `list`: the methods that a recipe can name, and their papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.cli.names import load_said
from vlmrl.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_)


def list_(
    slot: Annotated[str | None, typer.Argument(help="Only this slot: advantage, reward, ...", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    as_papers: Annotated[bool, typer.Option("--papers", help="Markdown with the sources, by slot; with --json every paper.")] = False,
    plugin: Annotated[list[str] | None, typer.Option(help="Also import this module, for its registrations.", show_default=False)] = None,
    recipe: Annotated[Path | None, typer.Option(help="Also import the plug-ins of this recipe.", show_default=False)] = None,
) -> None:
    """Every method that a recipe can name, with its arguments, what it needs, and its source.

    Example: vlmrl list advantage --plugin examples.my_method
    """
    if as_json and as_papers:
        if slot is not None:
            raise ConfigError(f"--papers --json lists papers, not slots; leave '{slot}' out")
        from vlmrl.methods import paper_list

        typer.echo(json.dumps(paper_list(), indent=1, ensure_ascii=False))
        return
    plugins = list(plugin or [])
    if recipe is not None:
        plugins += load_said(recipe, []).config.plugins
    from vlmrl.methods import described, papers, registries
    from vlmrl.registry import nearest

    found = registries(plugins)
    if slot is not None and slot not in found:
        raise ConfigError(f"unknown slot '{slot}'{nearest(slot, list(found))} (known: {', '.join(found)})")
    shown = {name: registry for name, registry in found.items() if slot in (None, name)}
    if as_papers:
        typer.echo(papers(shown), nl=False)
        return
    listed = {name: [described(registry.get(n)) for n in registry.names()] for name, registry in shown.items()}
    if as_json:
        typer.echo(json.dumps(listed, indent=1))
        return
    from rich.console import Console

    console = Console()
    for name, methods in listed.items():
        console.print(_method_table(name, methods))


def _method_table(slot: str, methods: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from vlmrl.methods import argument_line

    table = Table("name", "arguments", "needs", "source", "what it does", title=slot, title_justify="left", expand=True)
    for method in methods:
        mark = " (part of it is our guess)" if method["proposed"] else ""
        cells = (
            method["name"],
            "\n".join(argument_line(a) for a in method["arguments"]),
            "\n".join(method["needs"]),
            method["paper"] or "",
            method["summary"] + mark,
        )
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return table
