"""`vlmrl rollout-server`: vLLM for the rollouts of runs on other devices or machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlmrl.cli.names import load_said


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rollout-server")(rollout_server)


def rollout_server(
    recipe: Annotated[Path, typer.Argument(help="YAML recipe of the run that will ask, or its name", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, for example stages.rl.rollout.vllm.memory=0.9", show_default=False),
    ] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one. Another host than this one needs a token.")] = (
        "127.0.0.1:7000"
    ),
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that askers must have; made if it is not there.", show_default=False)
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Stage whose settings count; the first with vllm.", show_default=False)] = None,
) -> None:
    """Run vLLM as a server that makes the answers of a run (rollout.vllm.servers). It takes the run's weights, and answers with these only.

    Example: vlmrl rollout-server recipe.yaml --listen 10.0.0.7:7000 --token-file token
    """
    from vlmrl.extras.vllm.serving import serve
    from vlmrl.methods import method_problems
    from vlmrl.policy.load import quiet_transformers
    from vlmrl.run.ui import Ui
    from vlmrl.toy.base import prepare

    loaded = load_said(recipe, overrides, method_problems)
    quiet_transformers()
    ui = Ui()
    serve(
        loaded.config, lambda: prepare(loaded.config, ui), listen=listen, token_file=token_file, stage=stage, say=lambda text: ui.say(text)
    )
