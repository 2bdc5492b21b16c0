"""The command `view`: a run in the browser or as a file, two runs beside each other, or the list of a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import Wanted, extra
from vlmrl.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("view")(view)


def view(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of runs: then they are listed")] = Path("runs"),
    other: Annotated[Path | None, typer.Argument(help="A second run, shown beside it", show_default=False)] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the page of the run to this file or folder; no browser", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Of a folder of runs: machine-readable.")] = False,
) -> None:
    """Show a run in the browser: curves, kept groups with frames, answers by token, rewards and advantages. It follows a run that trains.

    --save writes curves, tables and held-out questions with their videos as one file, and imports the plug-ins of the run's recipe.

    Example: vlmrl view runs/toy_video
    """
    if save is not None:
        if other is not None:
            raise ConfigError("--save writes the page of one run; of two evaluations: vlmrl compare A B --out FOLDER")
        typer.echo(str(saved(run, save)))
        return
    if other is None and not _is_run(run):
        extra("vlmrl.extras.tools.runs.runs")(Wanted(name=str(run), as_json=as_json))
        return
    if as_json:
        raise ConfigError("--json is for a folder of runs; the numbers of a run are in its metrics.jsonl")
    from vlmrl.extras.pages.view.serve import serve

    serve([run] if other is None else [run, other], port, lambda address: typer.echo(f"{address}\nCtrl-C ends it."))


def _is_run(path: Path) -> bool:
    """Whether there is a run, or no folder that could hold runs: then the viewer says what is wrong."""
    from vlmrl.run.listing import is_run, runs_in

    return is_run(path) or (path.is_dir() and any(path.iterdir()) and not runs_in(path))


def saved(run: Path, to: Path) -> Path:
    """Write the page of a run: into a folder as report.html, or as a file.

    Raises:
        ConfigError: there is no such run.
        StorageError: a file of it is damaged, or the page cannot be written.
    """
    if not run.is_dir():
        raise ConfigError(f"{run}: no such run directory")
    from vlmrl.evals.score.runfiles import plugins_of
    from vlmrl.plugins import import_plugins

    import_plugins(plugins_of(run), f"{run / 'config.yaml'}: plugins")
    from vlmrl.extras.pages.run_page import write_report

    is_file = to.suffix in (".html", ".htm") and not to.is_dir()
    return write_report(run, to if is_file else to / "report.html")
