"""`vlmrl tools thoughts`: write thoughts for rows that have an answer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import Overrides, Recipe, load_said, method_problems


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(thoughts)


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

    Example: vlmrl tools thoughts ton thoughts.jsonl --check
    """
    loaded = load_said(recipe, overrides, method_problems)
    from vlmrl.extras.thoughts.write import write_thoughts
    from vlmrl.methods import require_methods
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.optional import TOY
    from vlmrl.run.ui import Ui

    require_methods(loaded.config)
    quiet_transformers()
    places = TOY["prepare"](loaded.config, Ui())
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
