"""One upload of a run's weights, in a process of its own: `python -m vlmrl.extras.publish.sender REPO --folder FOLDER`.

Its output is the address of the commit, or the reason why there is none, with the exit code of the error. It needs no torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import typer

from vlmrl.errors import VlmrlError

NICE = 5
"""The trainer goes first."""


def send(folder: Path, repo: str, *, private: bool, licence: str, message: str) -> str:
    """Upload a model folder of a run with its card, as one commit; the address of the commit.

    Raises:
        VlmrlError: it could not be prepared, or the hub refused.
    """
    from vlmrl.evals.ask.asking import recipe_of
    from vlmrl.evals.score.runfiles import plugins_of
    from vlmrl.extras.publish.facts import gather
    from vlmrl.extras.publish.hub import upload
    from vlmrl.extras.publish.prepare import fill
    from vlmrl.plugins import import_plugins

    recipe = recipe_of(folder)
    if recipe is not None:
        import_plugins(plugins_of(recipe.parent), f"{recipe}: plugins")
    facts = gather(folder, folder, results=[], licences={})
    with tempfile.TemporaryDirectory(prefix="vlmrl-publish-", dir=folder.resolve().parent) as scratch:
        fill(Path(scratch), facts, folder, repo=repo, licence=licence)
        return upload(Path(scratch), repo, private=private, message=message)


def main() -> None:
    """Upload what the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("repo")
    parser.add_argument("--folder", type=Path, help="without it the repository is made, and nothing uploaded")
    parser.add_argument("--license", default="unknown")
    parser.add_argument("--message", default="vlmrl train")
    parser.add_argument("--private", action="store_true")
    given = parser.parse_args()
    os.nice(NICE)
    try:
        if given.folder is None:
            from vlmrl.extras.publish.hub import make_repo

            typer.echo(make_repo(given.repo, private=given.private))
            return
        typer.echo(send(given.folder, given.repo, private=given.private, licence=given.license, message=given.message))
    except VlmrlError as error:
        typer.echo(" ".join(str(error).split()))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
