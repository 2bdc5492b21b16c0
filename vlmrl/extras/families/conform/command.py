"""`vlmrl check MODEL`: whether a model keeps the promises that exact training needs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vlmrl.errors import VlmrlError

if TYPE_CHECKING:
    from vlmrl.extras.families.conform.run import Report

FAILED = VlmrlError.exit_code


def conform(model: str, *, tiny: bool, only: str | None, engine: str | None, as_json: bool) -> None:
    """Try on a model of any family what exact training needs, and print the table; the report is written beside a model in a folder.

    Args:
        model: folder or hub id; with `tiny` also a name, as qwen3_5.
        tiny: random weights of small size, of a folder's config or of a name.
        only: some promises alone, as `P1,P8`.
        engine: `vllm` asks it the same prompts too.
        as_json: print the report in place of the table.

    Raises:
        typer.Exit: with 70, if a promise is not kept.
    """
    import json

    from vlmrl.extras.families.conform.engine import HEAD
    from vlmrl.extras.families.conform.run import conform as run
    from vlmrl.extras.families.conform.run import wanted
    from vlmrl.extras.families.conform.subject import open_small, open_subject
    from vlmrl.extras.families.tiny import TINY, write_tiny
    from vlmrl.policy.load import files_of, quiet_transformers

    quiet_transformers()
    chosen = wanted(only, engine)
    if tiny and model in TINY:
        with tempfile.TemporaryDirectory() as folder:
            write_tiny(model, Path(folder), head=None if engine is None else HEAD)
            report = run(open_subject(folder), model, chosen, engine)
    else:
        report = run(open_small(model) if tiny else open_subject(model), model, chosen, engine)
        folder = files_of(model)
        if folder is not None and Path(model).expanduser().is_dir() and not chosen:
            typer.echo(f"report: {report.write(folder)}", err=as_json)
    if as_json:
        typer.echo(json.dumps(report.json(), indent=1))
    else:
        show(report)
    if report.failed():
        raise typer.Exit(FAILED)


def show(report: Report) -> None:
    """The table on the terminal, and below it what is not kept."""
    from rich.console import Console
    from rich.text import Text

    from vlmrl.evals.score.table import Paragraphs

    console = Console()
    facts = report.facts
    layers = ", ".join(f"{n} {kind}" for kind, n in facts["layers"].items())
    more = [f"{facts['experts']} experts"] * bool(facts["experts"]) + [f"soft cap {facts['soft_cap']}"] * bool(facts["soft_cap"])
    kind = f"{report.name}: {facts['model_type']} ({facts['architecture']}); {', '.join([layers, *more])}; "
    console.print(Paragraphs([kind + ("float64" if report.float64 else "float32")]), crop=False)
    for colour, lines in told(report):
        console.print(Paragraphs(lines, style=colour), crop=False)
    failed = report.failed()
    console.print(Paragraphs(f"{c.promise} {c.case}, {c.what}: {c.value:.3g} (limit {c.limit:.2g}) {c.note}" for c in failed), crop=False)
    console.print(Text(f"layouts: {', '.join(report.layouts) or 'none'}"))


def told(report: Report) -> Iterator[tuple[str, list[str]]]:
    """Each promise in one or two short lines, which fit 80 columns: whether it is kept, and the largest error beside its limit.

    Yields:
        (colour, lines).
    """
    from vlmrl.extras.families.conform.run import NOT_RUN

    for key, about in report.about.items():
        mine = [c for c in report.checks if c.promise == key]
        plain = [c for c in mine if not c.control]
        worst = max(plain, key=lambda c: c.value / c.limit if c.limit else c.value, default=None)
        control = min((c.value for c in mine if c.control), default=None)
        kept, colour = ("not kept", "red") if report.failed(key) else ("kept", "green") if mine else ("nothing to try", "")
        numbers = [] if worst is None else [f"largest {worst.value:.2g}", f"limit {worst.limit:.2g}"]
        numbers += [] if control is None else [f"control {control:.2g}"]
        yield colour, [f"{key:<4}{kept}: {about}", f"    {', '.join([*numbers, f'{report.seconds[key]:.1f} s'])}"]
    for key, why in NOT_RUN.items():
        if key not in report.seconds:
            yield "yellow", [f"{key:<4}not run: {why}"]
