"""The command `tools pins`: the versions that pip should install."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the group `tools`, which is made here where no other module has made it."""
    group = next((one.typer_instance for one in app.registered_groups if one.name == "tools"), None)
    if group is None:
        group = typer.Typer(no_args_is_help=True, help="Commands that are rarely needed.")
        app.add_typer(group, name="tools")
    group.command()(pins)


def pins(
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="For an NVIDIA GPU, or for a CPU; without it, what is found.", show_default=False)
    ] = None,
) -> None:
    """Print the pinned versions of every package, as a constraints file for pip.

    Example: vlmrl tools pins --cpu > pins.txt
    """
    from vlmrl.extras.install.pins import chosen

    path, line = chosen(gpu)
    typer.echo(line, err=True)
    typer.echo(path.read_text(encoding="utf-8"), nl=False)
