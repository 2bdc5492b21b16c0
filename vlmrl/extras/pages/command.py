"""The command `report`: the page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(run: Annotated[Path, typer.Argument(help="Run directory, for example runs/toy_video", show_default=False)]) -> None:
    """Write report.html of a run: curves, tables, held-out questions with their videos. Imports the plug-ins of the run's recipe.

    Example: vlmrl report runs/toy_video
    """
    if not run.is_dir():
        raise ConfigError(f"{run}: no such run directory")
    from vlmrl.evals.score.runfiles import plugins_of
    from vlmrl.plugins import import_plugins

    import_plugins(plugins_of(run), f"{run / 'config.yaml'}: plugins")
    from vlmrl.extras.pages.run_page import write_report

    typer.echo(str(write_report(run)))
