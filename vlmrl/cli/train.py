"""The command `train`: run the stages of a recipe, or go on with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import Overrides, Recipe, extra, load_said, method_problems, panel
from vlmrl.errors import ConfigError

_SEVERAL = panel("With --gpus", show_default=True)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    push_to_hub: Annotated[str | None, typer.Option(help="Upload the weights to OWNER/NAME at the end", show_default=False)] = None,
    profile: Annotated[int, typer.Option(min=0, help="Trace this many steps of each stage (after one to warm up) to <run>/profile")] = 0,
    seeds: Annotated[
        str | None, typer.Option(help="One run after another, as 0,1,2: run.seed, and run.name with -s0, -s1, -s2", show_default=False)
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of this machine: a process for each, by torchrun", show_default=False)
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines, each with so many GPUs; the same line on every one", **_SEVERAL)] = 1,
    host: Annotated[str, typer.Option(help="Of several machines, the first: name or address, HOST or HOST:PORT", **_SEVERAL)] = "",
    restarts: Annotated[int, typer.Option(min=0, help="How often all processes start again after one has failed", **_SEVERAL)] = 3,
) -> None:
    """Train. The same command on the same run directory resumes where it stopped.

    Example: vlmrl train toy_video run.name=mine stages.rl.steps=50
    """
    if gpus is None and (nodes, host, restarts) != (1, "", 3):
        raise ConfigError("--nodes, --host and --restarts belong to --gpus: how many GPUs has each machine?")
    if profile and (seeds is not None or gpus is not None):
        raise ConfigError("--profile traces one run in this process; leave out --seeds and --gpus")
    if push_to_hub is not None:
        if seeds is not None:
            raise ConfigError(
                "--push-to-hub uploads one run; with --seeds, publish the one you want: vlmrl publish RUN/final --to OWNER/NAME"
            )
        overrides = [*(overrides or []), f"run.push_to_hub.repo={push_to_hub}"]
    if seeds is not None:
        several = [] if gpus is None else ["--gpus", str(gpus), "--nodes", str(nodes), "--host", host, "--restarts", str(restarts)]
        extra("vlmrl.extras.seeds.train.train_seeds")(str(recipe), overrides or [], seeds, several)
        return
    if gpus is not None:
        extra("vlmrl.extras.scale.command.start")(str(recipe), overrides or [], gpus=gpus, nodes=nodes, host=host, restarts=restarts)
        return
    _train(recipe, overrides, profile)


def _train(recipe: Path, overrides: list[str] | None, profile: int) -> None:
    if extra("vlmrl.extras.resume.answer.answered")(recipe, overrides or []):
        return
    loaded = load_said(recipe, overrides, method_problems)
    from vlmrl.api import tried_methods
    from vlmrl.methods import require_methods
    from vlmrl.run.ui import Ui
    from vlmrl.train import dist

    dist.start(loaded.config.train.patience)
    ui = Ui(quiet=not dist.is_main())
    for name in loaded.config.plugins:
        ui.say(f"plug-in: {name}")
    for note in tried_methods(loaded, require_methods(loaded.config)):
        ui.say(f"warning: {loaded.located(note)}")

    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.optional import TOY
    from vlmrl.run.start import train_from

    quiet_transformers()
    path = train_from(loaded, TOY["prepare"](loaded.config, ui), ui, profile_steps=profile)
    ui.print_exactly(extra("vlmrl.extras.resume.closing.closing_lines")(path, loaded.config))
    dist.stop()
