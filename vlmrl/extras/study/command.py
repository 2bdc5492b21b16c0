"""The command `study`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlmrl.cli.names import Overrides, method_problems, say

if TYPE_CHECKING:
    from vlmrl.extras.study.conduct import Conductor

FAILED = 70
"""Exit code where runs failed and the verdict waits for them."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("study")(study)


def study(
    file: Annotated[Path, typer.Argument(help="Study (YAML), or the name of one, for example toy_shell", show_default=False)],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Its folder; by default runs/ and the study's name", show_default=False)] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time", min=1)] = 1,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it can tell and how many runs are left, and stop.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Print the runs that are left, a command line each, and stop.")] = False,
    task: Annotated[
        str | None, typer.Option(help="Only the share I/N, I from 0; by default that of SLURM_ARRAY_TASK_ID", show_default=False)
    ] = None,
) -> None:
    """Tell methods from seeds: train the arms of a study over its seeds, and judge. The same command goes on where it stopped.

    Overrides are of all arms, as in `vlmrl train`; a key that followed the seed keeps the value that it is given.

    Example: vlmrl study toy_shell --jobs 2
    """
    from vlmrl.extras.study.conduct import Conductor, array_task
    from vlmrl.extras.study.read import find_study, read_study
    from vlmrl.extras.study.report import Report

    path = find_study(file)
    if path != file:
        say(f"study {file}: {path}")
    asked = read_study(path).given(overrides or [])
    conductor = Conductor(asked, out or Path("runs") / asked.name)
    share = array_task(task, os.environ)
    if plan or list_:
        conductor.fix() if conductor.begun else None
        _show(conductor, [str(path), *(overrides or [])], out, commands=list_)
        return
    conductor.plan.recipes(also=method_problems)
    conductor.check()
    say(f"plan {conductor.fix()[:16]}: {conductor.out / 'plan.json'}")
    failed = conductor.work(say, jobs=jobs, task=share)
    report = Report(conductor, failed)
    if share is None or not conductor.left():
        report.write()
        say(f"report: {conductor.out / 'report.md'}, numbers: {conductor.out / 'study.json'}")
    typer.echo("\n".join(report.lines()))
    if failed:
        raise typer.Exit(FAILED)


def _show(conductor: Conductor, words: list[str], out: Path | None, *, commands: bool) -> None:
    """What is left, as lines to read or to copy."""
    from vlmrl.extras.study.runs import units_of

    left = conductor.left()
    if not commands:
        for one in conductor.forecasts():
            typer.echo(f"power: {one.line()}")
        every = [run for look in conductor.looks for run in look.runs]
        typer.echo(f"{len({run.mark for run in every})} runs in all, {len(left)} to do until it is judged next")
        return
    for run in left:
        typer.echo(shlex.join(["vlmrl", *run.words]))
    if left:
        tasks = len(units_of([run for run in left if run.kind == "arm"]))
        own = shlex.join(["vlmrl", "study", *words, *(["--out", str(out)] if out is not None else [])])
        typer.echo(f"# or as an array: sbatch --array=0-{tasks - 1} --wrap {shlex.quote(own)}", err=True)
        typer.echo(
            f"# {len(left)} runs; a line may be run wherever {conductor.out} is seen, once the lines that it begins from are done", err=True
        )
