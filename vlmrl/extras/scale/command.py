"""Several GPUs and machines: `vlmrl plan --launch` prints the lines that start a run, `vlmrl train --gpus` runs this machine's part."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from vlmrl.cli.names import load_said, method_problems
from vlmrl.errors import ConfigError

if TYPE_CHECKING:
    from vlmrl.config.load import ResolvedRecipe
    from vlmrl.extras.scale.launch import Job


def show(
    recipe: str,
    overrides: Sequence[str],
    *,
    gpus: int,
    nodes: int,
    with_: str,
    host: str,
    restarts: int,
    servers: str | None,
    teachers: str | None,
    gpu: str,
) -> None:
    """Print the line that trains a recipe on several GPUs, or what the launcher `with_` wants in its place.

    Args:
        servers, teachers: of the run (`together.group_of`).
        gpu: its type, which SkyPilot asks for by name.

    Raises:
        ConfigError: there is no such launcher, it starts no servers, or the recipe has problems.
    """
    from vlmrl.extras.scale.launch import LAUNCHERS, Job, text
    from vlmrl.extras.scale.together import WRITERS, group_of

    known = tuple(dict.fromkeys([*LAUNCHERS, *WRITERS]))
    if with_ not in known:
        raise ConfigError(f"--with: expected one of {', '.join(known)}, got '{with_}'")
    several = servers is not None or teachers is not None
    if several and with_ not in WRITERS:
        raise ConfigError(f"--servers, --teachers: {with_} starts one program; take --with {', '.join(WRITERS)}")
    loaded = load_said(recipe, list(overrides), method_problems)  # each of the processes would find its problems again
    job = Job(gpus=gpus, nodes=nodes, host=host, restarts=restarts, train=(recipe, *overrides))
    if several or with_ not in LAUNCHERS:
        typer.echo(WRITERS[with_](group_of(loaded.config, job, rollouts=servers, teachers=teachers, gpu=gpu)), nl=False)
    else:
        typer.echo(text(job, with_), nl=False)


def start(recipe: str, overrides: Sequence[str], *, gpus: int, nodes: int, host: str, restarts: int) -> None:
    """Run this machine's part of a job by torchrun. Without a GPU the processes run on the CPU.

    Raises:
        ConfigError: the recipe has problems, the machine has fewer GPUs, or it is not said which of several machines is the first.
        typer.Exit: with the code of the process that failed first.
    """
    from vlmrl.extras.scale.launch import Job

    loaded = load_said(recipe, list(overrides), method_problems)
    if nodes > 1 and not host:
        raise ConfigError("--nodes: which machine is the first? give its name or address with --host, the same on every machine")
    _run(Job(gpus=gpus, nodes=nodes, host=host, restarts=restarts, train=(recipe, *overrides)), loaded)


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
        code = subprocess.run([sys.executable, "-m", "vlmrl", "tools", "toy", "prepare", *job.train], check=False).returncode
    code = code or run(job)
    if code:
        raise typer.Exit(code)
