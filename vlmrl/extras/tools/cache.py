"""The command `cache`: generated worlds, base models and audits of rows on this machine, with their sizes, and removing them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import size_text
from vlmrl.errors import ConfigError

CACHE = Path("~/.cache/vlmrl")
"""`toy.cache` of recipes that say nothing else."""
Folder = Annotated[Path, typer.Option("--cache", help="The recipe's toy.cache")]

caches = typer.Typer(no_args_is_help=True, help="Generated worlds, base models and audits of rows on this machine: list, clean.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(caches, name="cache")


@caches.command("list")
def list_(cache: Folder = CACHE, as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False) -> None:
    """What the cache holds, with sizes and when something was last written.

    Example: vlmrl cache list
    """
    from vlmrl.toy.cached import entries

    found = entries(cache.expanduser())
    if as_json:
        typer.echo(json.dumps([entry.json() for entry in found], indent=1))
        return
    for entry in found:
        days = (time.time() - entry.written) / 86400
        typer.echo(f"{size_text(entry.bytes):>10}  {entry.files:>6} files  {days:>5.1f} days old  {entry.path.name}  ({entry.kind})")
    typer.echo(f"{size_text(sum(entry.bytes for entry in found)):>10}  in {cache}")


@caches.command()
def clean(
    names: Annotated[list[str] | None, typer.Argument(help="Folders as `list` names them", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    older_than: Annotated[float | None, typer.Option(help="Only those not written for so many days", min=0, show_default=False)] = None,
    cache: Folder = CACHE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
) -> None:
    """Remove folders of the cache; recipes make them again when they want them. Not while a run uses them.

    Example: vlmrl cache clean --all --older-than 30
    """
    from vlmrl.run.ui import Ui
    from vlmrl.toy.cached import chosen, entries, remove

    if bool(names) == everything:
        raise ConfigError("name folders (vlmrl cache list), or say --all")
    folder = cache.expanduser()
    gone = chosen(entries(folder), names or (), older_than=older_than, now=time.time())
    if gone and not dry_run:
        remove(folder, gone, Ui(quiet=True))
    for entry in gone:
        typer.echo(f"{'would go' if dry_run else 'removed'}: {entry.path.name}  {size_text(entry.bytes)}")
    typer.echo(f"{size_text(sum(entry.bytes for entry in gone))} in {len(gone)} folders")
