"""The command `train`: run the stages of a recipe, or go on with them."""

from __future__ import annotations

from typing import Annotated

import typer

from vlmrl.cli.names import Overrides, Recipe, extra, load_said, method_problems


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(train)


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    push_to_hub: Annotated[str | None, typer.Option(help="Upload the weights to OWNER/NAME at the end", show_default=False)] = None,
    profile: Annotated[int, typer.Option(min=0, help="Trace this many steps of each stage (after one to warm up) to <run>/profile")] = 0,
) -> None:
    """Train. The same command on the same run directory resumes where it stopped.

    Example: vlmrl train toy_video run.name=mine stages.rl.steps=50
    """
    if push_to_hub is not None:
        overrides = [*(overrides or []), f"run.push_to_hub.repo={push_to_hub}"]
    if extra("vlmrl.extras.resume.answer.answered")(recipe, overrides or []):
        return
    loaded = load_said(recipe, overrides, method_problems)
    from vlmrl.methods import require_methods
    from vlmrl.run.ui import Ui
    from vlmrl.train import dist

    dist.start(loaded.config.train.patience)
    ui = Ui(quiet=not dist.is_main())
    for name in loaded.config.plugins:
        ui.say(f"plug-in: {name}")
    require_methods(loaded.config)

    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.start import train_from
    from vlmrl.toy.base import prepare

    quiet_transformers()
    path = train_from(loaded, prepare(loaded.config, ui), ui, profile_steps=profile)
    ui.print_exactly(extra("vlmrl.extras.resume.closing.closing_lines")(path, loaded.config))
    dist.stop()
