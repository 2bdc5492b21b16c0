"""The command `import`: results of another harness as a folder that `vlmrl compare` reads. Everything heavy is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import Plugins
from vlmrl.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    path: Annotated[Path, typer.Argument(help="File of the other harness; for lmms-eval also a folder of them", show_default=False)],
    kind: Annotated[str, typer.Option(help="lmms-eval or vlmevalkit", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for records and summary.json", show_default=False)],
    rows: Annotated[Path | None, typer.Option(help="The rows that were asked, to score as ours are", show_default=False)] = None,
    join: Annotated[str, typer.Option(help="How answers find their rows: id, or index from 0")] = "id",
    task: Annotated[str | None, typer.Option(help="Name of the task", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model", show_default=False)] = None,
    answer_format: Annotated[str | None, typer.Option(help="Answer format that was asked for", show_default=False)] = None,
    version: Annotated[str | None, typer.Option(help="Version of the other harness", show_default=False)] = None,
    primary: Annotated[str | None, typer.Option(help="Metric that stands for each task", show_default=False)] = None,
    plugin: Plugins = None,
) -> None:
    """Read results of lmms-eval or VLMEvalKit as records, to compare and to look at (docs/compare.md).

    Example: vlmrl import work/Model_MMStar.tsv --kind vlmevalkit --out imported/mmstar
    """
    if join not in ("id", "index"):
        raise ConfigError(f"--join: expected id or index, got '{join}'")
    from vlmrl.extras.bridge.importers.run import run_import
    from vlmrl.plugins import import_plugins

    import_plugins(plugin or (), "--plugin")
    for note in run_import(
        path, kind, out, rows=rows, join=join, task=task, model=model, answer_format=answer_format, version=version, primary=primary
    ):
        typer.echo(note)
