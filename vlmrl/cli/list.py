"""The command `list`: the methods that a recipe can name, and their papers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl.cli.names import extra, load_said
from vlmrl.errors import ConfigError
from vlmrl.registry import nearest

if TYPE_CHECKING:
    from rich.table import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_)


def list_(
    slot: Annotated[str | None, typer.Argument(help="Only this: algorithm, or a slot (advantage, reward, ...)", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable; without a slot all slots.")] = False,
    as_papers: Annotated[bool, typer.Option("--papers", help="Markdown with the sources, by slot; with --json every paper.")] = False,
    plugin: Annotated[list[str] | None, typer.Option(help="Also import this module, for its registrations.", show_default=False)] = None,
    recipe: Annotated[Path | None, typer.Option(help="Also import the plug-ins of this recipe.", show_default=False)] = None,
) -> None:
    """Every preset (algorithm) and every method that a recipe can name, the core first: arguments, needs, source, what stands behind it.

    Example: vlmrl list advantage --plugin examples.my_method
    """
    if as_json and as_papers:
        if slot is not None:
            raise ConfigError(f"--papers --json lists papers, not slots; leave '{slot}' out")
        from vlmrl.methods import paper_list

        typer.echo(json.dumps(paper_list(), indent=1, ensure_ascii=False))
        return
    plugins = list(plugin or [])
    if recipe is not None and slot != "algorithm":
        plugins += load_said(recipe, []).config.plugins
    if as_papers:
        from vlmrl.methods import papers, preset_table, registries

        found = {} if slot == "algorithm" else registries(plugins)
        _known(slot, found)
        typer.echo(papers({n: r for n, r in found.items() if slot in (None, n)}) if found else preset_table(), nl=False)
        return
    listed: dict[str, Any] = extra("vlmrl.extras.install.index.listed")(plugins)
    _known(slot, listed)
    shown = {name: part for name, part in listed.items() if slot in (None, name)}
    if as_json:
        typer.echo(json.dumps({name: part["json"] for name, part in shown.items() if slot or name != "algorithm"}, indent=1))
        return
    from rich.console import Console

    console = Console()
    for part in shown.values():
        for title, rows in part["tables"]:
            console.print(_table(title, part["columns"], rows))


def _known(slot: str | None, listed: Iterable[str]) -> None:
    known = ["algorithm", *(name for name in listed if name != "algorithm")]
    if slot is not None and slot not in known:
        raise ConfigError(f"unknown slot '{slot}'{nearest(slot, known)} (known: {', '.join(known)})")


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, title=title, title_justify="left", expand=True)
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    return table
