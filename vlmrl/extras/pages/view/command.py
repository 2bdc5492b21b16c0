"""The command `view`: all that runs, evaluations, comparisons and data checks say, in the browser, as a site, or as one file."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from vlmrl.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("view")(view)


def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A run, an evaluation, a comparison, a study, or a folder of them; several are shown together", show_default="runs"
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write a copy: one file if it ends in .html, else a site of static files", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
) -> None:
    """Show runs in the browser: what happened, curves over seeds, questions with their answers, kept groups, evaluations, comparisons.

    It follows runs that train. --save writes the same as files that need no server, and imports the plug-ins of the runs' recipes.

    Example: vlmrl view runs/toy_video
    """
    wanted = folders or [Path("runs")]
    if save is not None:
        from vlmrl.evals.score.runfiles import plugins_of
        from vlmrl.extras.pages.documents.folder import items_of
        from vlmrl.extras.pages.view.save import save as write
        from vlmrl.plugins import import_plugins

        for item in items_of(wanted):
            if item.kind == "run":
                import_plugins(plugins_of(item.path), f"{item.path / 'config.yaml'}: plugins")
        typer.echo(str(write(wanted, save)))
        return
    serve(wanted, port, lambda address: typer.echo(f"{address}\nCtrl-C ends it."))


def serve(paths: Sequence[Path], port: int, say: Callable[[str], None]) -> None:
    """Answer on 127.0.0.1 until Ctrl-C. `say` is told the address, which holds the token, once the port answers.

    Raises:
        ConfigError: there is nothing to look at, the port is taken, or starlette and uvicorn are not installed.
    """
    try:
        from vlmrl.extras.pages.view.app import make_app
        from vlmrl.web.listen import listen, run
    except ModuleNotFoundError as error:
        raise ConfigError(f"vlmrl view needs {error.name}: pip install 'vlmrl[view]'") from error
    from vlmrl.extras.pages.view.view import View

    view, token = View(paths), secrets.token_urlsafe(24)
    with closing(listen("127.0.0.1", port)) as bound:
        run(make_app(view, token), bound, lambda: say(f"http://127.0.0.1:{bound.getsockname()[1]}/?token={token}"))
