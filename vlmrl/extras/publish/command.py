"""The command `publish`: a checkpoint with its card, as a folder or on a model hub."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlmrl.errors import ConfigError

if TYPE_CHECKING:
    from vlmrl.extras.publish.facts import Facts


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("publish")(publish)


def publish(
    checkpoint: Annotated[Path, typer.Argument(help="Model folder such as <run>/final, or a finished run", show_default=False)],
    to: Annotated[str, typer.Option(help="Repository on the hub, OWNER/NAME", show_default=False)],
    licence: Annotated[str, typer.Option("--license", help="Of these weights, as the hub spells it: apache-2.0", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the folder and list it; upload nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to write; with --dry-run NAME.publish by default", show_default=False)] = None,
    results: Annotated[list[Path] | None, typer.Option(help="A folder of vlmrl eval; may be repeated", show_default=False)] = None,
    data_license: Annotated[list[str] | None, typer.Option(help="ROWS=LICENCE, if no data card says it", show_default=False)] = None,
    without_results: Annotated[bool, typer.Option("--without-results", help="Publish weights of which nothing was measured.")] = False,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
) -> None:
    """Write a model card (data, recipe, measured table, licence) and upload a checkpoint with it. Never the optimizer's state.

    Example: vlmrl publish runs/mine/final --to me/mine --license apache-2.0 --dry-run
    """
    from vlmrl.evals.ask.asking import recipe_of
    from vlmrl.evals.ask.models import model_folder
    from vlmrl.evals.score.runfiles import plugins_of
    from vlmrl.extras.publish.facts import gather
    from vlmrl.extras.publish.hub import check_repo
    from vlmrl.plugins import import_plugins

    check_repo(to, "--to")
    licences = dict(_licence(text) for text in data_license or ())
    folder = model_folder(checkpoint)
    recipe = recipe_of(checkpoint)
    if recipe is not None:
        import_plugins(plugins_of(recipe.parent), f"{recipe}: plugins")
    facts = gather(checkpoint, folder, results=results or [], licences=licences)
    if not facts.measured and not without_results:
        raise ConfigError(
            f"{checkpoint}: no evaluation of these weights is there, neither of its run nor in suites/ beside it; measure it first "
            f"(vlmrl eval {checkpoint} --suite NAME), name one with --results, or say --without-results"
        )
    target = out or (Path(f"{to.split('/')[-1]}.publish") if dry_run else None)
    if target is None:
        with tempfile.TemporaryDirectory(prefix="vlmrl-publish-", dir=folder.resolve().parent) as scratch:
            _written(facts, folder, Path(scratch), to, licence)
            _upload(Path(scratch), to, private)
        return
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: is there already and not empty; remove it, or give another --out")
    _written(facts, folder, target, to, licence)
    typer.echo(f"folder: {target}")
    if dry_run:
        typer.echo("nothing was uploaded (--dry-run)")
    else:
        _upload(target, to, private)


def _licence(text: str) -> tuple[str, str]:
    rows, found, licence = text.partition("=")
    if not found or not rows.strip() or not licence.strip():
        raise ConfigError(f"--data-license {text}: expected ROWS=LICENCE, for example rows/train.jsonl='CC BY 4.0'")
    return rows.strip(), licence.strip()


def _written(facts: Facts, folder: Path, target: Path, repo: str, licence: str) -> None:
    """Fill the folder and say what is in it."""
    from vlmrl.extras.publish.facts import UNKNOWN
    from vlmrl.extras.publish.files import listing
    from vlmrl.extras.publish.prepare import fill

    for line in listing(target, fill(target, facts, folder, repo=repo, licence=licence).left_out):
        typer.echo(line)
    for one in facts.data:
        if one.licence == UNKNOWN:
            typer.echo(f"warning: the licence of {one.path} is not stated: --data-license '{one.path}=...'", err=True)


def _upload(folder: Path, repo: str, private: bool) -> None:
    from vlmrl.extras.publish.hub import upload

    typer.echo(f"uploaded: {upload(folder, repo, private=private, message='vlmrl publish')}")
