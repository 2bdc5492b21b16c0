"""The command `new`: a recipe of one's own, with comments, from rows that are there or from one of the starters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import printable
from vlmrl.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("new")(new)


def new(
    name: Annotated[str | None, typer.Argument(help="Name of the run; the recipe is NAME.yaml here", show_default=False)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="--data: what the source says in place of what is found", show_default=False),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Rows to read: a file, a folder, org/name@split.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Folder or hub id of a model on this machine.", show_default=False)] = None,
    media_root: Annotated[Path | None, typer.Option(help="Folder of the media, if they are not found.", show_default=False)] = None,
    eval_: Annotated[
        str | None, typer.Option("--eval", help="Held-out rows; else some of --data are held out.", show_default=False)
    ] = None,
    held_out: Annotated[
        int | None, typer.Option(min=0, help="Rows of --data to hold out; 0: none. Else a tenth, from 64 rows on.", show_default=False)
    ] = None,
    answer_type: Annotated[str | None, typer.Option(help="How answers are read, as choice or math.", show_default=False)] = None,
    columns: Annotated[str | None, typer.Option(help="As {prompt: question, answer: output}.", show_default=False)] = None,
    turns: Annotated[str | None, typer.Option(help="Of conversations: first, last or split.", show_default=False)] = None,
    task: Annotated[str | None, typer.Option(help="Starter, as maths or clicks; --list names them.", show_default=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the starters.")] = False,
    examples: Annotated[Path | None, typer.Option(help="Copy notebooks, plugins and suites into a folder.", show_default=False)] = None,
) -> None:
    """Write a recipe of your own, with comments: from rows that are there (--data), or the starter of a task. Nothing is overwritten.

    Example: vlmrl new mine --data rows/train.parquet --model models/qwen
    """
    if list_ or examples is not None:
        if name is not None:
            raise ConfigError("--list and --examples go without NAME")
        _others(examples)
        return
    if name is None:
        raise ConfigError("give NAME and --data FILE, or NAME and --task; --list names the starters")
    of_rows = {"--eval": eval_, "--held-out": held_out, "--answer-type": answer_type, "--columns": columns, "--turns": turns}
    if data is None:
        given = [option for option, value in of_rows.items() if value is not None] + [setting for setting in settings or []]
        if given:
            raise ConfigError(f"{given[0]} says how rows are read: give them with --data FILE")
        _starter(name, task, model, media_root)
        return
    from vlmrl.extras.starter.of_rows import Asked, recipe_of_rows

    said = [f"{key[2:].replace('-', '_')}={of_rows[key]}" for key in ("--answer-type", "--columns", "--turns") if of_rows[key] is not None]
    asked = Asked(
        name=name,
        data=_home(data),
        model=model,
        media_root=None if media_root is None else media_root.expanduser(),
        settings=[*said, *(settings or [])],
        task=task,
        eval_data=None if eval_ is None else _home(eval_),
        held_out=held_out,
    )
    for line in recipe_of_rows(asked):
        typer.echo(printable(line))


def _home(path: str) -> str:
    """A path of rows without `~`, which a recipe does not know; anything else as it was given."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _others(examples: Path | None) -> None:
    """`--list` and `--examples`."""
    if examples is None:
        from vlmrl.extras.starter.tasks import KINDS, TASKS

        for name, task in TASKS.items():
            typer.echo(f"{name:10} {KINDS[task.kind].about}")
        return
    from vlmrl.extras.starter.examples import copied

    for file in copied(examples):
        typer.echo(file)


def _starter(name: str, task: str | None, model: str | None, media_root: Path | None) -> None:
    """The starter of a task."""
    from vlmrl.extras.starter.recipe import MODEL, write_starter
    from vlmrl.extras.starter.tasks import TASKS
    from vlmrl.policy.found import problem_of

    if task is None:
        raise ConfigError(f"give --data FILE, whose rows are read, or --task for a starter without rows: {', '.join(TASKS)}")
    file = Path(f"{name}.yaml")
    write_starter(file, name, task=task, model=model or MODEL, media_root=media_root)
    missing = problem_of(model or MODEL)
    if missing is not None:
        typer.echo(printable(f"model.path: {missing}"), err=True)
    typer.echo(f"{file}: written; next: write train.jsonl, then vlmrl check {file}")
