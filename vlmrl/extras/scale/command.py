"""`vlmrl launch`: the lines that start a run on several GPUs and machines, and on this machine the run itself."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vlmrl.cli.names import Overrides, Recipe, load_said, method_problems
from vlmrl.errors import ConfigError

if TYPE_CHECKING:
    from vlmrl.config.load import ResolvedRecipe
    from vlmrl.extras.scale.launch import Job


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(launch)


def launch(
    recipe: Recipe,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of each machine: one process for each.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    with_: Annotated[str, typer.Option("--with", help="torchrun, accelerate or slurm")] = "torchrun",
    host: Annotated[str, typer.Option(help="Of several machines, the first one: name or address, as HOST or HOST:PORT.")] = "",
    restarts: Annotated[int, typer.Option(min=0, help="How often all processes are started again after one has ended with an error.")] = 3,
    run: Annotated[bool, typer.Option("--run", help="Do not print the line: run this machine's part of it.")] = False,
) -> None:
    """Print the line that trains a recipe on several GPUs, or run it here with --run. Without a GPU the processes run on the CPU.

    Example: vlmrl launch toy_video --gpus 2 --run run.name=mine
    """
    from vlmrl.extras.scale.launch import LAUNCHERS, Job, text

    if with_ not in LAUNCHERS:
        raise ConfigError(f"--with: expected one of {', '.join(LAUNCHERS)}, got '{with_}'")
    loaded = load_said(recipe, overrides, method_problems)  # each of the processes would find its problems again
    job = Job(gpus=gpus, nodes=nodes, host=host, restarts=restarts, train=(str(recipe), *(overrides or [])))
    if not run:
        typer.echo(text(job, with_), nl=False)
        return
    if with_ != "torchrun":
        raise ConfigError(f"--run goes through torchrun; run the lines that --with {with_} prints without --run yourself")
    if nodes > 1 and not host:
        raise ConfigError("--nodes: which machine is the first? give its name or address with --host, the same on every machine")
    _run(job, loaded)


def _run(job: Job, loaded: ResolvedRecipe) -> None:
    import torch

    from vlmrl.extras.scale.launch import run

    there = torch.cuda.device_count()
    if there == 0:
        typer.echo(f"no GPU on this machine: {job.gpus} processes on its CPU, which talk over gloo", err=True)
    elif job.gpus > there:
        raise ConfigError(f"--gpus: {job.gpus} asked for, this machine has {there}")
    code = 0
    if loaded.config.toy is not None:  # a generated world and its base model are made by one process, which leaves the GPU again
        code = subprocess.run([sys.executable, "-m", "vlmrl", "toy", "prepare", *job.train], check=False).returncode
    code = code or run(job)
    if code:
        raise typer.Exit(code)
