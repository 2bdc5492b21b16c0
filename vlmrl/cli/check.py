"""The command `check`: a recipe, its methods and its data, before anything is trained."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlmrl.cli.names import Overrides, load_said, method_problems, printable
from vlmrl.errors import ConfigError, DataError
from vlmrl.registry import Catalogue

if TYPE_CHECKING:
    from vlmrl.config.load import ResolvedRecipe
    from vlmrl.config.schema import Config
    from vlmrl.run.audit import AuditReport

FITS: Catalogue[Callable[[ResolvedRecipe, str], str | None]] = Catalogue("check of a GPU")
"""What `--gpu` asks whether a recipe fits; its answer is a line, or None where all is well."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    recipe: Annotated[
        str | None, typer.Argument(help="YAML recipe or its name; with --rows, KEY=VALUE of its source", show_default=False)
    ] = None,
    overrides: Overrides = None,
    no_data: Annotated[bool, typer.Option("--no-data", help="Check the recipe only; read no rows and no media.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page of rows as the model sees them, worst first.", show_default=False)] = None,
    gpu: Annotated[str | None, typer.Option(help="Warn if it does not fit this GPU, as h100 or h100:8.", show_default=False)] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the resolved recipe as YAML, each value with where it comes from.")
    ] = False,
    rows: Annotated[Path | None, typer.Option(help="Check this file of rows alone, without a recipe.", show_default=False)] = None,
    answer_type: Annotated[str | None, typer.Option(help="--rows: how answers are read, as choice or math.", show_default=False)] = None,
    media_root: Annotated[Path | None, typer.Option(help="--rows: folder of the media, if not the file's.", show_default=False)] = None,
    columns: Annotated[str | None, typer.Option(help="--rows: as {prompt: question, answer: output}.", show_default=False)] = None,
    turns: Annotated[str | None, typer.Option(help="--rows: first, last or split.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="--rows: model whose tokens and pixels are meant.", show_default=False)] = None,
    no_media: Annotated[bool, typer.Option("--no-media", help="--rows: open no media.")] = False,
) -> None:
    """Check a recipe, its methods and all of its data; or with --rows a file of rows alone. No model weights are loaded.

    Example: vlmrl check toy_video --html rows.html run.seed=3
    """
    if rows is not None:
        if no_data or print_ or (no_media and html is not None):
            raise ConfigError("--rows goes without --no-data and --print, and --no-media without --html")
        settings = [f"{k}={v}" for k, v in (("answer_type", answer_type), ("columns", columns), ("turns", turns)) if v is not None]
        _check_rows(rows, [*settings, *([recipe] if recipe else []), *(overrides or [])], media_root, model, html, media=not no_media)
        return
    if recipe is None or any((answer_type, media_root, columns, turns, model, no_media)):
        raise ConfigError("give a recipe, or rows with --rows FILE; --answer-type and the like belong to --rows")
    loaded = load_said(recipe, overrides, method_problems)
    if print_:
        from vlmrl.config.load import annotated

        for line in annotated(loaded):
            typer.echo(printable(line))
    with (
        contextlib.redirect_stdout(sys.stderr) if print_ else contextlib.nullcontext()
    ):  # what is printed is a recipe: nothing else is in it
        typer.echo("recipe: ok")
        if gpu is not None and (line := FITS["plan"](loaded, gpu)) is not None:
            typer.echo(line)
        if not _check_methods(loaded):
            return
        if no_data:
            typer.echo("data: skipped (--no-data)")
            return
        report = _audit(loaded.config, html)
        if report.problems:
            raise DataError("\n".join(report.problems))
        typer.echo("data: ok")


def _check_rows(rows: Path, settings: list[str], media_root: Path | None, model: str | None, html: Path | None, *, media: bool) -> None:
    """`check --rows`."""
    from vlmrl.run.check_rows import audit_rows, rows_config, told
    from vlmrl.run.ui import Ui

    config = rows_config(rows, settings, media_root=media_root, model=model)
    # A page shows rows as the model sees them, in pixels and tokens, so it wants a model.
    report = audit_rows(config, Ui(), media=media) if html is None else _audit(config, html, rows=True)
    for line in told(report, counted=media and model is not None):
        typer.echo(printable(line))
    (found,) = report.sources
    if report.problems or not found.good or found.good < found.rows:
        raise DataError(f"{found.path}: {found.rows - found.good} of {found.rows} rows cannot be used")
    typer.echo("rows: ok" if media else "rows: ok (no media opened)")


def _audit(config: Config, html: Path | None, *, rows: bool = False) -> AuditReport:
    """Audit the data of a recipe, show the table and write the page.

    `rows` is for a file without a recipe: all gold answers are scored, and there is no table.
    """
    from vlmrl.api import audited
    from vlmrl.run.ui import Ui

    ui = Ui()
    report = audited(config, html, ui, rows=rows)
    if not rows:
        ui.show(report.table())
    return report


def _check_methods(loaded: ResolvedRecipe) -> bool:
    """Pass 2; False when torch is missing, which is said and is no error of the recipe."""
    try:
        from vlmrl.methods import method_doubts, require_methods

        found = require_methods(loaded.config)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        typer.echo("methods and data: skipped, torch is not installed (bash scripts/setup.sh)")
        return False
    from vlmrl.api import TRIALS

    try:
        tried = TRIALS["trial"](loaded.config, found)
    except ConfigError as error:
        raise ConfigError([loaded.located(problem) for problem in error.problems]) from error
    typer.echo("methods: ok")
    for text in [*method_doubts(loaded.config), *tried]:
        typer.echo(f"warning: {loaded.located(text)}")
    return True
