"""The command line: a module for each command, errors and exit codes. Everything heavy is imported inside the command that needs it.

Errors made on purpose (`VlmrlError`) are shown without a traceback and end with their own exit code; anything else is a
defect and keeps its traceback (exit code 1).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from vlmrl import __version__
from vlmrl.cli import eval
from vlmrl.cli.names import extra, printable
from vlmrl.cli.old_names import OLD, Commands
from vlmrl.errors import ConfigError, VlmrlError

USAGE = ConfigError.exit_code

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Reinforcement learning for vision-language models.",
    epilog="Exit codes: 0 finished, 64 configuration, 65 data, 69 remote reward, rollout server or model hub, 70 numerics, internal, or a "
    "finished run lacks an evaluation, 73 run directory in use, 74 storage, 75 stopped by a signal (same command resumes), 76 files "
    "or data of a run changed.",
)
COMMANDS = (
    "vlmrl.extras.starter.command",
    "vlmrl.cli.check",
    "vlmrl.extras.plan.command",
    "vlmrl.cli.train",
    "vlmrl.cli.eval",
    "vlmrl.extras.seeds.command",
    "vlmrl.extras.study.command",
    "vlmrl.extras.pages.view.command",
    "vlmrl.extras.serve.command",
    "vlmrl.extras.publish.command",
    "vlmrl.extras.tools.command",
)
"""The module of each command, in the order of the help: by name, because nothing here imports an extra."""
TOOLS = (
    "vlmrl.extras.toy.command",
    "vlmrl.extras.toy.cache",
    "vlmrl.extras.agents.command",
    "vlmrl.extras.thoughts.command",
    "vlmrl.extras.wording.command",
    "vlmrl.extras.install.command",
    "vlmrl.extras.pixels.command",
)
"""Those of `vlmrl tools`."""
tools = typer.Typer(
    no_args_is_help=True, help="Helpers: generated worlds, their cache, environments, thoughts for rows, wordings, pins, pixel faults."
)
for names, group in ((COMMANDS, app), (TOOLS, tools)):
    for command in names:
        import_module(command).register(group)
for registered in app.registered_commands:
    registered.hidden = registered.name in OLD
app.add_typer(tools, name="tools")


def main() -> None:
    """Run the command line and exit with the right code."""
    extra("vlmrl.extras.install.later.install")()  # whoever reads processors does not pay for models
    try:
        app()
    except VlmrlError as error:
        show_error(error)
        leave(error)
        raise SystemExit(error.exit_code) from error
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        show_error(ConfigError("torch is not installed; run: bash scripts/setup.sh"))
        raise SystemExit(USAGE) from error
    except SystemExit as stop:
        # 2 is what the argument parser uses for a usage error; ours is 64, as for a recipe.
        if stop.code == 2 and "--suite" in sys.argv[-1:]:
            typer.echo(eval.known_suites(), err=True)
        raise SystemExit(USAGE if stop.code == 2 else stop.code) from None


def leave(error: VlmrlError) -> None:
    """A command has ended with an error: the other ranks hear of it, and the launcher, should a restart be in vain."""
    if "WORLD_SIZE" in os.environ:
        from vlmrl.train import dist

        dist.leaving(error)
        dist.SEVERAL["stop_restarts"](error.exit_code)


def show_error(error: VlmrlError) -> None:
    """The message on stderr, in red, one line per problem; control characters (from data or model text) are taken out."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    lines = error.problems if isinstance(error, ConfigError) else [str(error)]
    head = f"{len(lines)} problems:" if len(lines) > 1 else "error:"
    for line in [f"{head} {lines[0]}"] if len(lines) == 1 else [head, *(f"  {line}" for line in lines)]:
        console.print(Text(printable(line), style="red"), soft_wrap=True)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    """Reinforcement learning for vision-language models."""
    if version:
        typer.echo(__version__)
        raise typer.Exit()
