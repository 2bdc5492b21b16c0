"""`vlmrl tools prompts`: ask the base model in several wordings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import Overrides, Recipe, load_said, method_problems


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(prompts)


def prompts(
    recipe: Recipe,
    wordings: Annotated[Path, typer.Argument(help="YAML file of wordings, as configs/prompts/click.yaml", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Folder to write", show_default=False)],
    overrides: Overrides = None,
    rows: Annotated[
        str | None, typer.Option(help="File of held-out rows below data.root; by default the last stage's.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(help="Rows that are asked, those with the smallest hashes of their ids.", min=1)] = 128,
) -> None:
    """Ask the recipe's model the same rows in several wordings before training, and say which is best. OUT/best.json has it as overrides.

    Example: vlmrl tools prompts click configs/prompts/click.yaml runs/click-prompts data.root=rows
    """
    from vlmrl.extras.wording.wordings import read_wordings

    read = read_wordings(wordings)
    loaded = load_said(recipe, overrides, method_problems)
    from vlmrl.extras.wording.ask import OVERRIDES, PAGE, ask_in_wordings
    from vlmrl.methods import require_methods
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.optional import TOY
    from vlmrl.run.ui import Ui

    require_methods(loaded.config)
    quiet_transformers()
    config, source = loaded.config, None
    if rows is not None:
        source = config.stages[-1].source.model_copy(update={"path": rows})
        config = config.model_copy(
            update={"eval": config.eval.model_copy(update={"source": source})}
        )  # a generated world has the rows that are named
    places = TOY["prepare"](config, Ui())
    choice, _ = ask_in_wordings(config, places, read, out, rows=source, limit=limit, say=typer.echo)
    typer.echo((out / PAGE).read_text(encoding="utf-8"))
    typer.echo(f"best: {choice.best}; as overrides: {out / OVERRIDES}")
