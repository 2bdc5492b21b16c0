"""`vlmrl list`: the methods that a recipe can name, a line each; one of them in full; and their papers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vlmrl.cli.names import load_said
from vlmrl.errors import ConfigError
from vlmrl.registry import Registry, nearest

if TYPE_CHECKING:
    from rich.console import Console

PRESETS = "algorithm"
"""What presets are listed under, beside the slots."""


def methods(
    slot: str | None,
    name: str | None,
    *,
    as_json: bool,
    as_papers: bool,
    plugins: list[str],
    recipe: Path | None,
    others: Sequence[str],
) -> None:
    """Print presets and methods.

    Args:
        slot: only these; or the name of one method, wherever it is.
        name: only this method of the slot.
        others: what else `vlmrl list` knows, for the message about a wrong name.

    Raises:
        ConfigError: there is no such slot or method, or options do not fit together.
    """
    if as_json and as_papers:
        if slot is not None:
            raise ConfigError(f"--papers --json lists papers, not slots; leave '{slot}' out")
        from vlmrl.methods import paper_list

        typer.echo(json.dumps(paper_list(), indent=1, ensure_ascii=False))
        return
    from vlmrl.methods import listed_presets, papers, preset_table, registries

    if recipe is not None:
        plugins += load_said(recipe, []).config.plugins
    found = {} if slot == PRESETS else registries(plugins)
    presets = listed_presets() if slot in (None, PRESETS) or slot not in found else []
    if name is None and slot not in (None, PRESETS, *found):
        _one(_named(str(slot), found, presets, others), as_json=as_json)
        return
    if name is not None:
        if slot not in (PRESETS, *found):
            raise ConfigError(f"unknown slot '{slot}'{nearest(str(slot), [PRESETS, *found])} (known: {PRESETS}, {', '.join(found)})")
        _one(_named(name, {key: registry for key, registry in found.items() if key == slot}, presets, ()), as_json=as_json)
        return
    shown = {key: registry for key, registry in found.items() if slot in (None, key)}
    if as_papers:
        typer.echo(preset_table() if slot == PRESETS else papers(shown), nl=False)
    elif as_json:
        typer.echo(json.dumps({PRESETS: presets} if slot == PRESETS else _described(shown), indent=1))
    else:
        _lines(shown, presets)


def _described(found: Mapping[str, Registry[Any]]) -> dict[str, list[dict[str, Any]]]:
    from vlmrl.methods import described

    return {slot: [described(slot, registry.get(name)) for name in registry.names()] for slot, registry in found.items()}


def _named(
    name: str, found: Mapping[str, Registry[Any]], presets: Sequence[Mapping[str, Any]], others: Sequence[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    """(slot, description) of every method or preset with this name.

    Raises:
        ConfigError: there is none.
    """
    from vlmrl.methods import described

    ours = [(PRESETS, preset) for preset in presets if preset["name"] == name]
    ours += [(slot, described(slot, registry.get(name))) for slot, registry in found.items() if name in registry.names()]
    if ours:
        return ours
    known = [*(preset["name"] for preset in presets), *(one for registry in found.values() for one in registry.names())]
    if not others:
        raise ConfigError(f"unknown {next(iter(found), PRESETS)} '{name}'{nearest(name, known)} (known: {', '.join(known)})")
    slots = [PRESETS, *found]
    raise ConfigError(
        f"nothing to list is called '{name}'{nearest(name, [*others, *slots, *known])} (lists: {', '.join(others)}; "
        f"slots: {', '.join(slots)}; or the name of a method)"
    )


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _lines(found: Mapping[str, Registry[Any]], presets: Sequence[Mapping[str, Any]]) -> None:
    """A line for each, with as many as its text needs."""
    from rich.table import Table
    from rich.text import Text

    from vlmrl.methods import by_card

    console = _console()

    def show(title: str, rows: Sequence[tuple[str, str]]) -> None:
        console.print(Text(title, style="bold"), soft_wrap=False)
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for one, text in rows:
            table.add_row(Text(f"  {one}"), Text(text, overflow="fold"))
        console.print(table)
        console.print()

    if presets:
        show(f"{PRESETS}. Presets: what a paper's method sets, together.", [(one["name"], one["for"] or one["title"]) for one in presets])
    for slot, registry in found.items():
        for head, methods in by_card(slot, registry):
            show(f"{slot}. {head}", [(m["name"], m["summary"] + (" (part of it is our guess)" if m["proposed"] else "")) for m in methods])
    console.print(Text("One in full, with its arguments, needs, source and evidence: vlmrl list NAME"))


def _one(found: Sequence[tuple[str, Mapping[str, Any]]], *, as_json: bool) -> None:
    """Each in full, as `key: value`."""
    if as_json:
        typer.echo(json.dumps({slot: [method] for slot, method in found}, indent=1))
        return
    from rich.padding import Padding
    from rich.text import Text

    from vlmrl.methods import argument_line, setting_lines

    console = _console()
    for slot, one in found:
        if slot == PRESETS:
            facts = [("sets", setting_lines(one)), ("what for", [one["for"]]), ("not in it", [one["without"]])]
            facts.append(("source", [f"{one['title']}, {one['paper']}"]))
        else:
            card = one["card"]
            read = f" ({card['read']} read)" if card["read"] else ""
            facts = [
                ("what it does", [one["summary"] + (" (part of it is our guess)" if one["proposed"] else "")]),
                ("arguments", [argument_line(argument) for argument in one["arguments"]] or ["none"]),
                ("needs", [", ".join(one["needs"])]),
                ("source", [f"{one['paper']}{read}" if one["paper"] else ""]),
                ("evidence", [card["said"]]),
            ]
        console.print(Text(f"{slot} {one['name']}", style="bold"))
        for key, lines in facts:
            said = [line for line in lines if line]
            for number, line in enumerate(said):
                text = Text(line, overflow="fold")
                head = f"{key}:" if number == 0 else ""
                console.print(Padding(Text.assemble(f"{head:<14}", text, overflow="fold"), (0, 0, 0, 2)))
