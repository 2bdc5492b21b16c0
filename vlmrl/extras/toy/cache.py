"""`vlmrl list caches` and `vlmrl tools cache`: generated worlds, base models and audits of rows on this machine, and removing them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import Wanted, size_text
from vlmrl.errors import ConfigError

CACHE = Path("~/.cache/vlmrl")
"""`toy.cache` of recipes that say nothing else."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    cache = typer.Typer(no_args_is_help=True, help="Generated worlds, base models and audits of rows on this machine.")
    app.add_typer(cache, name="cache")
    cache.command()(clean)
    cache.callback()(_of_several)


def _of_several() -> None:
    """Generated worlds, base models and audits of rows on this machine: remove them. `vlmrl list caches` lists them."""


def caches(wanted: Wanted) -> None:
    """Print what the cache holds, with sizes and when something was last written."""
    from vlmrl.extras.toy.cached import entries

    cache = wanted.cache or CACHE
    found = entries(cache.expanduser())
    if wanted.as_json:
        typer.echo(json.dumps([entry.json() for entry in found], indent=1))
        return
    for entry in found:
        days = (time.time() - entry.written) / 86400
        typer.echo(f"{size_text(entry.bytes):>8} {entry.files:>6} files {days:>5.1f} days old  {entry.path.name}: {entry.kind}")
    typer.echo(f"{size_text(sum(entry.bytes for entry in found)):>8}  in {cache}")
    if found:
        typer.echo("remove: vlmrl tools cache clean NAME")


def clean(
    names: Annotated[list[str] | None, typer.Argument(help="Folders as `vlmrl list caches` names them", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    older_than: Annotated[float | None, typer.Option(help="Only those not written for so many days", min=0, show_default=False)] = None,
    cache: Annotated[Path, typer.Option("--cache", help="The recipe's toy.cache")] = CACHE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
) -> None:
    """Remove folders of the cache; recipes make them again when they want them. Not while a run uses them.

    Example: vlmrl tools cache clean --all --older-than 30
    """
    from vlmrl.extras.toy.cached import chosen, entries, remove
    from vlmrl.run.ui import Ui

    if bool(names) == everything:
        raise ConfigError("name folders (vlmrl list caches), or say --all")
    folder = cache.expanduser()
    gone = chosen(entries(folder), names or (), older_than=older_than, now=time.time())
    if gone and not dry_run:
        remove(folder, gone, Ui(quiet=True))
    for entry in gone:
        typer.echo(f"{'would go' if dry_run else 'removed'}: {entry.path.name}  {size_text(entry.bytes)}")
    typer.echo(f"{size_text(sum(entry.bytes for entry in gone))} in {len(gone)} folders")
