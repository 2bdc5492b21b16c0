"""`vlmrl list`: the methods that a recipe can name, a line each; one of them in full; and their papers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vlmrl.cli.names import load_said
from vlmrl.errors import ConfigError
from vlmrl.extras.tools.index import PRESETS, Listed, listed
from vlmrl.registry import nearest

if TYPE_CHECKING:
    from rich.console import Console


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
    if recipe is not None:
        plugins += load_said(recipe, []).config.plugins
    if as_papers:
        _papers(slot, plugins)
        return
    found = listed(plugins)
    if name is not None:
        _known(slot, found)
        _one(_named(name, {str(slot): found[str(slot)]}), as_json=as_json)
    elif slot is not None and slot not in found:
        _one(_named(slot, found, others), as_json=as_json)
    elif as_json:
        typer.echo(json.dumps({key: part for key, part in found.items() if slot == key or (slot is None and key != PRESETS)}, indent=1))
    else:
        _lines({key: part for key, part in found.items() if slot in (None, key)})


def _papers(slot: str | None, plugins: Sequence[str]) -> None:
    from vlmrl.methods import papers, preset_table, registries

    found = {} if slot == PRESETS else registries(plugins)
    _known(slot, [PRESETS, *found])
    typer.echo(papers({key: one for key, one in found.items() if slot in (None, key)}) if found else preset_table(), nl=False)


def _known(slot: str | None, known: Iterable[str]) -> None:
    """
    Raises:
        ConfigError: there is no such slot.
    """
    slots = list(known)
    if slot is not None and slot not in slots:
        raise ConfigError(f"unknown slot '{slot}'{nearest(slot, slots)} (known: {', '.join(slots)})")


def _named(name: str, found: Listed, others: Sequence[str] = ()) -> list[tuple[str, Mapping[str, Any]]]:
    """(slot, description) of every method or preset with this name.

    Raises:
        ConfigError: there is none.
    """
    ours = [(slot, one) for slot, part in found.items() for one in part if one["name"] == name]
    if ours:
        return ours
    known = [one["name"] for part in found.values() for one in part]
    if not others:
        raise ConfigError(f"unknown {next(iter(found))} '{name}'{nearest(name, known)} (known: {', '.join(known)})")
    near = nearest(name, [*others, *found, *known])
    raise ConfigError(
        f"nothing to list is called '{name}'{near} (lists: {', '.join(others)}; slots: {', '.join(found)}; or the name of a method)"
    )


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _lines(found: Listed) -> None:
    """A line for each, with as many as its text needs."""
    from rich.table import Table
    from rich.text import Text

    from vlmrl.cards import CORE, OTHERS

    console = _console()

    def show(title: str, rows: Sequence[tuple[str, str]]) -> None:
        console.print(Text(title, style="bold"))
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for one, text in rows:
            table.add_row(Text(f"  {one}"), Text(text, overflow="fold"))
        console.print(table)
        console.print()

    for slot, part in found.items():
        if slot == PRESETS:
            show(f"{PRESETS}. Presets: what a paper's method sets, together.", [(one["name"], one["for"] or one["title"]) for one in part])
            continue
        for head, is_core in ((CORE, True), (OTHERS, False)):
            rows = [(one["name"], one["summary"] + _guess(one)) for one in part if bool(one["card"]["core"]) == is_core]
            if rows:
                show(f"{slot}. {head}", rows)
    console.print(Text("One in full, with its arguments, needs, source and evidence: vlmrl list NAME"))


def _guess(one: Mapping[str, Any]) -> str:
    return " (part of it is our guess)" if one["proposed"] else ""


def _one(found: Sequence[tuple[str, Mapping[str, Any]]], *, as_json: bool) -> None:
    """Each in full, as `key: value`."""
    if as_json:
        typer.echo(json.dumps({slot: [method] for slot, method in found}, indent=1))
        return
    from rich.padding import Padding
    from rich.text import Text

    from vlmrl.cards import argument_line

    console = _console()
    for slot, one in found:
        if slot == PRESETS:
            from vlmrl.methods import setting_lines

            facts = [("sets", setting_lines(one)), ("what for", [one["for"]]), ("not in it", [one["without"]])]
            facts.append(("source", [f"{one['title']}, {one['paper']}"]))
        else:
            card = one["card"]
            read = f" ({card['read']} read)" if card["read"] else ""
            facts = [
                ("what it does", [one["summary"] + _guess(one)]),
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
