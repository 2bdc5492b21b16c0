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
    from vlmrl.methods import by_card, described, listed_presets, papers, preset_table, registries

    if slot == "algorithm" and (as_papers or as_json):
        typer.echo(preset_table() if as_papers else json.dumps({slot: listed_presets()}, indent=1) + "\n", nl=False)
        return
    plugins = list(plugin or [])
    if recipe is not None:
        plugins += load_said(recipe, []).config.plugins
    from vlmrl.registry import nearest

    found = {} if slot == "algorithm" else registries(plugins)
    if slot not in (None, "algorithm", *found):
        raise ConfigError(f"unknown slot '{slot}'{nearest(slot, ['algorithm', *found])} (known: algorithm, {', '.join(found)})")
    shown = {name: registry for name, registry in found.items() if slot in (None, name)}
    if as_papers:
        typer.echo(papers(shown), nl=False)
        return
    if as_json:
        listed = {name: [described(name, registry.get(n)) for n in registry.names()] for name, registry in shown.items()}
        typer.echo(json.dumps(listed, indent=1))
        return
    from rich.console import Console

    console = Console()
    if slot in (None, "algorithm"):
        console.print(_preset_table(listed_presets()))
    for name, registry in shown.items():
        for head, methods in by_card(name, registry):
            console.print(_method_table(f"{name}. {head}", methods))


def _preset_table(presets: list[dict[str, Any]]) -> Table:
    from vlmrl.methods import setting_lines

    rows = [(one["name"], "\n".join(setting_lines(one)), one["for"], one["without"], f"{one['title']}, {one['paper']}") for one in presets]
    return _table("algorithm", ("name", "it sets", "what for", "not in it", "source"), rows)


def _method_table(title: str, methods: list[dict[str, Any]]) -> Table:
    from vlmrl.methods import argument_line

    rows = [
        (
            method["name"],
            "\n".join(argument_line(a) for a in method["arguments"]),
            "\n".join(method["needs"]),
            f"{method['paper']} ({method['card']['read']} read)" if method["card"]["read"] else method["paper"] or "",
            method["card"]["said"],
            method["summary"] + (" (part of it is our guess)" if method["proposed"] else ""),
        )
        for method in methods
    ]
    return _table(title, ("name", "arguments", "needs", "source", "evidence", "what it does"), rows)


def _table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, title=title, title_justify="left", expand=True)
    for row in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    return table
