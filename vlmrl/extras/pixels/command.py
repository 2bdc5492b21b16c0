"""The command `tools pixels`."""

from __future__ import annotations

from typing import Annotated

import typer

from vlmrl.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pixels)


def pixels(
    faults: Annotated[list[str] | None, typer.Argument(help="Keys of faults, as the table shows them; all", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Feed this installation twelve faults of pixels, and measure whether each is noticed, prevented or trained on in silence.

    A tiny model with random weights on the CPU; two processes for one of the faults. Exit code 70 if one was trained on in silence.

    Example: vlmrl tools pixels exif alpha
    """
    import json
    import tempfile
    from dataclasses import asdict
    from pathlib import Path

    from vlmrl.extras.pixels.faults import FAULTS
    from vlmrl.extras.pixels.feed import Feed
    from vlmrl.extras.pixels.judge import Judge
    from vlmrl.extras.pixels.own import Vlmrl

    known = [fault.key for fault in FAULTS]
    if unknown := [key for key in faults or () if key not in known]:
        raise ConfigError(f"no pixel fault is called {', '.join(map(repr, unknown))} (known: {', '.join(known)})")
    with tempfile.TemporaryDirectory(prefix="asked-") as folder:
        found = []
        for one in Judge(Feed(Path(folder))).verdicts(Vlmrl(), faults):
            found.append(one)
            if not as_json:
                typer.echo(f"{one.fault:<15} {one.verdict:<11} {one.how}")
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1))
    if any(one.verdict in ("in silence", "stopped") for one in found):
        raise typer.Exit(70)
