"""The command `view`: a run in the browser, while it trains or afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("view")(view)


def view(
    run: Annotated[Path, typer.Argument(help="Folder of a run", show_default=False)],
    other: Annotated[Path | None, typer.Argument(help="A second run, shown beside it", show_default=False)] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
) -> None:
    """Show a run in the browser: curves, kept groups with frames, answers by token, rewards and advantages. It follows a run that trains.

    Example: vlmrl view runs/toy_video
    """
    from vlmrl.extras.pages.view.serve import serve

    serve([run] if other is None else [run, other], port, lambda address: typer.echo(f"{address}\nCtrl-C ends it."))
