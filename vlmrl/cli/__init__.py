"""The command line: arguments, dispatch, tables, exit codes. Everything heavy is imported inside the command that needs it.

Errors made on purpose (`VlmrlError`) are shown without a traceback and end with their own exit code; anything else is a
defect and keeps its traceback (exit code 1).
"""

from __future__ import annotations

import contextlib
import json
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmrl import __version__
from vlmrl.cli import ask, cache, conform, env, eval, examples, init, launch, plan, publish, runs, serve, server, toy, view
from vlmrl.cli.names import load_said
from vlmrl.errors import ConfigError, DataError, VlmrlError

if TYPE_CHECKING:
    from rich.table import Table

    from vlmrl.config.load import Loaded
    from vlmrl.config.schema import Config
    from vlmrl.train.audit import AuditReport

USAGE = ConfigError.exit_code

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Reinforcement learning for vision-language models.",
    epilog="Exit codes: 0 finished, 64 configuration, 65 data, 69 remote reward or rollout server, 70 numerics, internal, or a finished "
    "run lacks an evaluation, 73 run directory in use, 74 storage, 75 stopped by a signal (same command resumes), 76 a run's files or data "
    "changed.",
)
for part in (
    init,
    examples,
    ask,
    serve,
    publish,
    runs,
    view,
    toy,
    cache,
    env,
    eval,
    launch,
    server,
    plan,
    conform,
):
    part.register(app)

Recipe = Annotated[Path, typer.Argument(help="YAML recipe, or the name of one, for example toy_video", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, for example run.seed=3 stages.rl.optim.lr=1e-6", show_default=False),
]


def main() -> None:
    """Run the command line and exit with the right code."""
    try:
        app()
    except VlmrlError as error:
        show_error(error)
        launch.ended(error)
        raise SystemExit(error.exit_code) from error
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        show_error(ConfigError("torch is not installed; run: bash scripts/setup.sh"))
        raise SystemExit(USAGE) from error
    except SystemExit as stop:
        # 2 is what the argument parser uses for a usage error; ours is 64, as for a recipe.
        if stop.code == 2 and "--suite" in sys.argv[-1:]:
            typer.echo(eval.known_suites(), err=True)
        raise SystemExit(USAGE if stop.code == 2 else stop.code) from None


def show_error(error: VlmrlError) -> None:
    """The message on stderr, in red, one line per problem; control characters (from data or model text) are taken out."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    lines = error.problems if isinstance(error, ConfigError) else [str(error)]
    head = f"{len(lines)} problems:" if len(lines) > 1 else "error:"
    for line in [f"{head} {lines[0]}"] if len(lines) == 1 else [head, *(f"  {line}" for line in lines)]:
        console.print(Text(printable(line), style="red"), soft_wrap=True)


def printable(text: str) -> str:
    """Text without control and direction characters, which could rewrite what a terminal shows; line breaks and tabs stay."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf"))


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    """Reinforcement learning for vision-language models."""
    if version:
        typer.echo(__version__)
        raise typer.Exit()


@app.command()
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    profile: Annotated[int, typer.Option(min=0, help="Trace this many steps of each stage (after one to warm up) to <run>/profile")] = 0,
) -> None:
    """Train. The same command on the same run directory resumes where it stopped.

    Example: vlmrl train toy_video run.name=mine stages.rl.steps=50
    """
    loaded = load_said(recipe, overrides, _method_problems)
    from vlmrl.methods import require_methods
    from vlmrl.train import dist
    from vlmrl.train.ui import Ui

    dist.start(loaded.config.train.patience)
    ui = Ui(quiet=not dist.is_main())
    for name in loaded.config.plugins:
        ui.say(f"plug-in: {name}")
    require_methods(loaded.config)

    from vlmrl.policy.load import quiet_transformers
    from vlmrl.toy.base import prepare
    from vlmrl.train.run import train_from

    quiet_transformers()
    path = train_from(loaded, prepare(loaded.config, ui), ui, profile_steps=profile)
    from rich.text import Text

    from vlmrl.train.results import closing_lines

    for line in closing_lines(path, loaded.config):
        ui.console.print(Text(line), soft_wrap=True)  # a path or a command that is broken into lines cannot be copied
    dist.stop()


@app.command()
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
    loaded = load_said(recipe, overrides, _method_problems)
    if print_:
        from vlmrl.config.load import annotated

        for line in annotated(loaded):
            typer.echo(printable(line))
    with (
        contextlib.redirect_stdout(sys.stderr) if print_ else contextlib.nullcontext()
    ):  # what is printed is a recipe: nothing else is in it
        typer.echo("recipe: ok")
        plan.warn(loaded, gpu)
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
    from vlmrl.train.check_rows import audit_rows, rows_config, told
    from vlmrl.train.ui import Ui

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
    from vlmrl.train.ui import Ui

    ui = Ui()
    report = audited(config, html, ui, rows=rows)
    if not rows:
        ui.show(report.table())
    return report


def _method_problems(config: Config) -> list[str]:
    """Problems of pass 2, beside those of pass 1; none where torch is missing (`check` then says that it skipped them)."""
    try:
        from vlmrl.methods import method_problems

        return method_problems(config)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return []


def _check_methods(loaded: Loaded) -> bool:
    """Pass 2; False when torch is missing, which is said and is no error of the recipe."""
    try:
        from vlmrl.methods import method_doubts, require_methods

        require_methods(loaded.config)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        typer.echo("methods and data: skipped, torch is not installed (bash scripts/setup.sh)")
        return False
    typer.echo("methods: ok")
    for text in method_doubts(loaded.config):
        typer.echo(f"warning: {loaded.located(text)}")
    return True


@app.command()
def thoughts(
    recipe: Recipe,
    target: Annotated[Path, typer.Argument(help="JSONL file to write", show_default=False)],
    overrides: Overrides = None,
    stage: Annotated[str, typer.Option(help="Stage whose rows get thoughts.", show_default=False)] = "sft",
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy; then a second attempt gives the same thought.")] = 1.0,
    forbid_answer: Annotated[bool, typer.Option("--forbid-answer", help="Refuse thoughts that give the answer away.")] = False,
    check_: Annotated[bool, typer.Option("--check", help="Refuse thoughts that do not lead the model to the answer.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Also replace thoughts that are there.")] = False,
) -> None:
    """Write thoughts for rows that have an answer but none (reverse thinking of TON), with the recipe's model.

    Example: vlmrl thoughts ton thoughts.jsonl --check
    """
    loaded = load_said(recipe, overrides, _method_problems)
    from vlmrl.methods import require_methods
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.toy.base import prepare
    from vlmrl.train.thoughts import write_thoughts
    from vlmrl.train.ui import Ui

    require_methods(loaded.config)
    quiet_transformers()
    places = prepare(loaded.config, Ui())
    done = write_thoughts(
        loaded.config,
        places,
        stage=stage,
        target=target,
        temperature=temperature,
        forbid_answer=forbid_answer,
        check=check_,
        overwrite=overwrite,
    )
    typer.echo(f"{target}: {done.rows} rows, {done.added} thoughts added, {done.kept} kept, {len(done.without)} rows without a thought")
    for reason, count in done.reasons.items():
        typer.echo(f"  {count} {reason}")


@app.command("list")
def list_(
    slot: Annotated[str | None, typer.Argument(help="Only this slot: advantage, reward, ...", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    as_papers: Annotated[bool, typer.Option("--papers", help="Markdown with the sources, by slot; with --json every paper.")] = False,
    plugin: Annotated[list[str] | None, typer.Option(help="Also import this module, for its registrations.", show_default=False)] = None,
    recipe: Annotated[Path | None, typer.Option(help="Also import the plug-ins of this recipe.", show_default=False)] = None,
) -> None:
    """Every method that a recipe can name, with its arguments, what it needs, and its source.

    Example: vlmrl list advantage --plugin examples.my_method
    """
    if as_json and as_papers:
        if slot is not None:
            raise ConfigError(f"--papers --json lists papers, not slots; leave '{slot}' out")
        from vlmrl.methods import paper_list

        typer.echo(json.dumps(paper_list(), indent=1, ensure_ascii=False))
        return
    plugins = list(plugin or [])
    if recipe is not None:
        plugins += load_said(recipe, []).config.plugins
    from vlmrl.methods import described, papers, registries
    from vlmrl.registry import nearest

    found = registries(plugins)
    if slot is not None and slot not in found:
        raise ConfigError(f"unknown slot '{slot}'{nearest(slot, list(found))} (known: {', '.join(found)})")
    shown = {name: registry for name, registry in found.items() if slot in (None, name)}
    if as_papers:
        typer.echo(papers(shown), nl=False)
        return
    listed = {name: [described(registry.get(n)) for n in registry.names()] for name, registry in shown.items()}
    if as_json:
        typer.echo(json.dumps(listed, indent=1))
        return
    from rich.console import Console

    console = Console()
    for name, methods in listed.items():
        console.print(_method_table(name, methods))


def _method_table(slot: str, methods: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from vlmrl.methods import argument_line

    table = Table("name", "arguments", "needs", "source", "what it does", title=slot, title_justify="left", expand=True)
    for method in methods:
        mark = " (part of it is our guess)" if method["proposed"] else ""
        cells = (
            method["name"],
            "\n".join(argument_line(a) for a in method["arguments"]),
            "\n".join(method["needs"]),
            method["paper"] or "",
            method["summary"] + mark,
        )
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return table


@app.command()
def doctor(
    model: Annotated[str | None, typer.Argument(help="Folder of a model, to look at it as well", show_default=False)] = None,
) -> None:
    """Versions, devices, video decoders and optional parts of this machine. Exit code 70 when something needed is missing.

    Example: vlmrl doctor
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vlmrl.doctor import COLOURS, Finding, examine, examine_model
    from vlmrl.evals.bridge.compat import findings as lmms

    console = Console(stderr=True)
    with console.status("importing packages and asking devices ..."):
        findings = [*examine(), *(examine_model(model) if model is not None else ())]
    new = [f for f in lmms() if f.status == "problem" or f.item not in {known.item for known in findings}]
    findings += [Finding(area="lmms-eval", item=f.item, found=f.found, status=f.status, advice=f.advice) for f in new]
    table = Table()
    for name in ("area", "item", "found", "status"):
        table.add_column(name, no_wrap=name != "found", overflow="fold")
    for f in findings:
        table.add_row(Text(f.area), Text(f.item), Text(f.found), Text(f.status, style=COLOURS[f.status]))
    Console().print(table, *(Text(f"{f.item}: {f.advice}", style=COLOURS[f.status]) for f in findings if f.advice), sep="\n")
    wrong = [f"{f.item}: {f.advice}" for f in findings if f.status == "problem"]
    if wrong:
        raise VlmrlError("; ".join(wrong))


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run directory, for example runs/toy_video", show_default=False)]) -> None:
    """Write report.html of a run: curves, tables, held-out questions with their videos. Imports the plug-ins of the run's recipe.

    Example: vlmrl report runs/toy_video
    """
    if not run.is_dir():
        raise ConfigError(f"{run}: no such run directory")
    from vlmrl.evals.pages.runfiles import plugins_of
    from vlmrl.plugins import import_plugins

    import_plugins(plugins_of(run), f"{run / 'config.yaml'}: plugins")
    from vlmrl.evals.pages.run_page import write_report

    typer.echo(str(write_report(run)))
