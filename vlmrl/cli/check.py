"""The command `check`: before anything is trained, a recipe with its methods and data, rows alone, a model, or this machine."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlmrl.cli.doctor import doctor
from vlmrl.cli.names import Overrides, extra, given, load_said, method_problems, panel, printable
from vlmrl.errors import ConfigError, DataError
from vlmrl.registry import Catalogue

if TYPE_CHECKING:
    from vlmrl.cli.names import Ask
    from vlmrl.config.load import ResolvedRecipe
    from vlmrl.config.schema import Config
    from vlmrl.run.audit_report import AuditReport, SourceAudit

FITS: Catalogue[Callable[[ResolvedRecipe, str], str | None]] = Catalogue("check of a GPU")
"""What `--gpu` asks whether a recipe fits; its answer is a line, or None where all is well."""

WIDE = 100
"""Columns from which on a table of sources is shown."""
_ROWS, _MODEL = panel("Of rows"), panel("Of a model")
_SAID = {"recipe": "a recipe", "rows": "rows", "model": "a model", "machine": "the machine"}
_OF = {
    "recipe": ("no_data", "print_", "gpu"),
    "rows": ("answer_type", "media_root", "columns", "turns", "model", "no_media"),
    "recipe rows": ("html",),
    "model": ("tiny", "only", "engine", "as_json"),
}
"""What is checked -> parameters that are for nothing else."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


def check(
    ctx: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(help="Recipe (file or name), file of rows, or folder of a model; nothing: this machine", show_default=False),
    ] = None,
    overrides: Overrides = None,
    no_data: Annotated[bool, typer.Option("--no-data", help="Check the recipe only; read no rows and no media.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page of rows as the model sees them, worst first.", show_default=False)] = None,
    gpu: Annotated[str | None, typer.Option(help="Warn if it does not fit this GPU, as h100 or h100:8.", show_default=False)] = None,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the resolved recipe as YAML, each value with where it comes from.")
    ] = False,
    rows: Annotated[Path | None, typer.Option(help="The file, where its name does not say that it holds rows.", **_ROWS)] = None,
    answer_type: Annotated[str | None, typer.Option(help="How answers are read, as choice or math.", **_ROWS)] = None,
    media_root: Annotated[Path | None, typer.Option(help="Folder of the media, if not the file's.", **_ROWS)] = None,
    columns: Annotated[str | None, typer.Option(help="As {prompt: question, answer: output}.", **_ROWS)] = None,
    turns: Annotated[str | None, typer.Option(help="first, last or split.", **_ROWS)] = None,
    model: Annotated[str | None, typer.Option(help="Model whose tokens and pixels are meant.", **_ROWS)] = None,
    no_media: Annotated[bool, typer.Option("--no-media", help="Open no media.", **_ROWS)] = False,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Random weights of small size: of a folder's config, or of a name.", **_MODEL)
    ] = False,
    only: Annotated[str | None, typer.Option(help="Some promises alone, as P1,P8.", **_MODEL)] = None,
    engine: Annotated[str | None, typer.Option(help="vllm: what it makes of the same prompts, too (P14).", **_MODEL)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report in place of the table.", **_MODEL)] = False,
    machine: Annotated[bool, typer.Option("--machine", help="This machine, and of a model what its files say; runs nothing.")] = False,
) -> None:
    """Check before anything is trained: a recipe with all of its data, rows alone, a model for exact training, or this machine.

    Of a recipe and rows no weights are loaded. A model is tried with ids, features, positions and every layout against rows alone, and the
    report is written beside it, as conform.json. Exit code 70 if a promise is not kept, or if the machine lacks what is needed.

    Example: vlmrl check toy_video --html rows.html run.seed=3
    """
    kind = "rows" if rows is not None else _kind(what, machine, bool(given(ctx, _OF["model"])))
    wrong = given(ctx, (name for of, names in _OF.items() if kind not in of.split() for name in names))
    wrong += overrides or [] if kind in ("model", "machine") else []
    if wrong:
        raise ConfigError(f"{wrong[0]}: not for {_SAID[kind]} ({what or rows or 'this one'}); vlmrl check --help says what belongs to what")
    if kind == "machine":
        doctor(what)
    elif kind == "model":
        extra("vlmrl.extras.families.conform.command.conform")(str(what), tiny=tiny, only=only, engine=engine, as_json=as_json)
    elif kind == "rows":
        if no_media and html is not None:
            raise ConfigError("--no-media goes without --html")
        settings = [f"{k}={v}" for k, v in (("answer_type", answer_type), ("columns", columns), ("turns", turns)) if v is not None]
        settings += [*([what] if rows is not None and what else []), *(overrides or [])]
        _check_rows(rows or Path(str(what)), settings, media_root, model, html, media=not no_media)
    else:
        _check_recipe(str(what), overrides, no_data=no_data, print_=print_, gpu=gpu, html=html)


def _kind(what: str | None, machine: bool, as_model: bool) -> str:
    """What is to be checked: `machine`, `model`, `rows` or `recipe`. A path that is not there is told by its ending.

    Raises:
        ConfigError: a folder that is none of these.
    """
    if machine or what is None:
        return "machine"
    from vlmrl.data.raw import FILES

    path = Path(what).expanduser()
    if as_model or (path / "config.json").is_file():
        return "model"
    if path.is_dir() and (path / "run.json").is_file():
        raise ConfigError(f"{what}: a run; its recipe is {path / 'config.yaml'}, its model {path / 'final'}; vlmrl view {what} shows it")
    if path.is_dir():
        return "rows"
    if path.is_file():
        return "recipe" if path.suffix in (".yaml", ".yml") else "rows"
    if path.suffix in FILES or re.search(r"[#@]", path.name):
        return "rows"
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+", what) is not None and not path.parent.is_dir() and path.suffix not in (".yaml", ".yml")
    return "model" if hub else "recipe"


def _check_recipe(recipe: str, overrides: list[str] | None, *, no_data: bool, print_: bool, gpu: str | None, html: Path | None) -> None:
    ask = extra("vlmrl.extras.tools.known.registries_of") if no_data else None  # rows are scored: those need the methods themselves
    loaded = load_said(recipe, overrides, lambda config: method_problems(config, ask))
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
        if not _check_methods(loaded, ask):
            return
        if no_data:
            typer.echo("data: skipped (--no-data)")
            return
        report = _audit(loaded.config, html)
        if report.problems:
            raise DataError("\n".join(report.problems))
        typer.echo("data: ok")


def _check_rows(rows: Path, settings: list[str], media_root: Path | None, model: str | None, html: Path | None, *, media: bool) -> None:
    """Rows alone. Of which none can be used as they are is read as `vlmrl new` would."""
    from vlmrl.run.check_rows import audit_rows, rows_config, told
    from vlmrl.run.ui import Ui

    def audited() -> tuple[AuditReport, SourceAudit]:
        # A page shows rows as the model sees them, in pixels and tokens, so it wants a model.
        report = audit_rows(config, Ui(), media=media) if html is None else _audit(config, html, rows=True)
        return report, report.sources[0]

    config, choice = rows_config(rows, settings, media_root=media_root, model=model), ""
    report, found = audited()
    if media and not found.good:
        config, lines, choice = extra("vlmrl.extras.starter.source.looked")(config, media_root)
        if lines:
            typer.echo("none can be used without these settings, which were found in the rows; KEY=VALUE says another:")
            for line in lines:
                typer.echo(printable(line))
            report, found = audited()
    for line in told(report, counted=media and model is not None):
        typer.echo(printable(line))
    if report.problems or not found.good or found.good < found.rows:
        raise DataError(f"{found.path}: {found.rows - found.good} of {found.rows} rows cannot be used{choice}")
    typer.echo("rows: ok" if media else "rows: ok (no media opened)")


def _audit(config: Config, html: Path | None, *, rows: bool = False) -> AuditReport:
    """Audit the data of a recipe, show the table and write the page.

    `rows` is for a file without a recipe: all gold answers are scored, and there is no table.
    """
    from vlmrl.api import audited
    from vlmrl.run.ui import Ui

    ui = Ui()
    report = audited(config, html, ui, rows=rows)
    if not rows and ui.console.width >= WIDE:
        ui.show(report.table())
    elif not rows:  # a table of as many columns would break words and paths
        for line in [*(line for one in report.sources for line in _lines(one)), *report.notes]:
            typer.echo(printable(line))
    return report


def _lines(one: SourceAudit) -> list[str]:
    """What the table has in the row of a source."""
    left = [f"  left out: {count} {reason}" for reason, count in sorted(one.reasons.items())]
    counts = f"  {one.rows} rows, {one.good} good, longest prompt {one.longest_prompt} tokens"
    return [f"{one.path}: {one.answer_format}, used by {', '.join(one.used_by)}", counts, *left]


def _check_methods(loaded: ResolvedRecipe, ask: Ask | None) -> bool:
    """Pass 2; False when torch is missing, which is said and is no error of the recipe."""
    try:
        from vlmrl.methods import method_doubts, require_methods

        found = require_methods(loaded.config, ask)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        typer.echo("methods and data: skipped, torch is not installed (bash scripts/setup.sh)")
        return False
    from vlmrl.api import tried_methods

    tried = tried_methods(loaded, found)
    typer.echo("methods: ok")
    for text in [*method_doubts(loaded.config, found), *tried]:
        typer.echo(f"warning: {loaded.located(text)}")
    for text in extra("vlmrl.extras.tools.pays.experience")(loaded.config):
        typer.echo(f"evidence: {text}")
    return True
