"""`vlmrl tools toy`: the embedded worlds of generated media, and the tiny models that are pretrained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import load_said
from vlmrl.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    toy = typer.Typer(no_args_is_help=True, help="The embedded worlds of generated videos and pictures.")
    app.add_typer(toy, name="toy")
    for command in (make, prepare):
        toy.command()(command)


def make(
    out: Annotated[Path, typer.Argument(help="Folder to write the world to", show_default=False)],
    train: Annotated[int | None, typer.Option(help="Scenes of the training split", show_default=False, min=1)] = None,
    validation: Annotated[int | None, typer.Option(help="Scenes of the validation split", show_default=False, min=1)] = None,
    test: Annotated[int | None, typer.Option(help="Scenes of the held-out split", show_default=False, min=1)] = None,
    pretrain: Annotated[int | None, typer.Option(help="Scenes of the pretraining split", show_default=False, min=1)] = None,
    sft: Annotated[int | None, typer.Option(help="Scenes of the fine-tuning split", show_default=False, min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the world", show_default=False, min=0)] = None,
    kind: Annotated[
        str, typer.Option(help="grounding, shell, shell_stays, shell_slips, shell_way, multitask, spatial, think, gui or click")
    ] = "grounding",
) -> None:
    """Generate a world: real media files with exact ground truth, and their rows.

    Example: vlmrl tools toy make /tmp/world --train 20 --test 5
    """
    from vlmrl.config.schema import ToyWorldSection
    from vlmrl.extras.toy.kinds import PICTURES, VIDEOS, make_world
    from vlmrl.extras.toy.tasks import SPLITS
    from vlmrl.run.ui import Ui

    if kind not in (*VIDEOS, *PICTURES):
        raise ConfigError(f"--kind: unknown kind '{kind}' (known: {', '.join((*VIDEOS, *PICTURES))})")
    given = {"train": train, "validation": validation, "test": test, "pretrain": pretrain, "sft": sft, "seed": seed}
    section = ToyWorldSection.model_validate({k: v for k, v in given.items() if v is not None} | {"kind": kind})
    total = sum(getattr(section, split) for split in SPLITS)
    media = "videos" if kind in VIDEOS else "images"
    try:
        with Ui().bar(media, total) as bar:
            marker = make_world(out, section, lambda done, _: bar.update(done))
            bar.update(total)
    except FileExistsError as error:
        raise ConfigError(str(error)) from error
    counts = ", ".join(f"{files['count']} {split}" for split, files in marker[media].items())
    typer.echo(f"{out}: {media}: {counts}")


def prepare(
    recipe: Annotated[Path, typer.Argument(help="YAML recipe, or the name of one, for example toy_video", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, for example toy.cache=/data/toy", show_default=False),
    ] = None,
) -> None:
    """Make the world and the base model of a recipe, if they are not in its cache, and train nothing else. Ranks of a run find them there.

    Example: vlmrl tools toy prepare toy_video
    """
    config = load_said(recipe, overrides).config
    if config.toy is None:
        typer.echo(f"{recipe}: nothing is generated for it")
        return
    from vlmrl.extras.toy.base import prepare as make_ready
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.ui import Ui

    quiet_transformers()
    places = make_ready(config, Ui())
    typer.echo(f"{places.data}: world\n{places.model}: base model")
