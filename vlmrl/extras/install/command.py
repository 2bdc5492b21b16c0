"""The command `tools pins`: the versions that pip should install."""

from __future__ import annotations

from typing import Annotated

import typer

from vlmrl.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pins)


def pins(
    cpu: Annotated[bool, typer.Option("--cpu", help="For a CPU, also where there is a GPU.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="For an NVIDIA GPU, also where none is found.")] = False,
    trackers: Annotated[bool, typer.Option("--trackers", help="For an environment with all trackers of run.trackers.")] = False,
) -> None:
    """Print the pinned versions of every package, as a constraints file for pip.

    Example: vlmrl tools pins --cpu
    """
    from vlmrl.extras.install.pins import Kind, chosen

    kinds: dict[Kind, bool] = {"cpu": cpu, "gpu": gpu, "trackers": trackers}
    asked: list[Kind] = [kind for kind, given in kinds.items() if given]
    if len(asked) > 1:
        raise ConfigError(f"give one of --{' and --'.join(asked)}")
    path, line = chosen(asked[0] if asked else None)
    typer.echo(line, err=True)
    typer.echo(path.read_text(encoding="utf-8"), nl=False)
