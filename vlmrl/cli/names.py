"""Recipes and suites of the command line, by file or by name. Which file was taken for a name is said on stderr, once per job."""

from __future__ import annotations

import gc
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vlmrl.config.load import ResolvedRecipe
    from vlmrl.config.schema import Config
    from vlmrl.registry import Registry

    Ask = Callable[[Config], Mapping[str, Registry[Any]]]
    """Gives the registries that a recipe is checked against, once its plug-ins are imported."""


Recipe = Annotated[Path, typer.Argument(help="YAML recipe, or the name of one, for example toy_video", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, for example run.seed=3 stages.rl.optim.lr=1e-6", show_default=False),
]


Plugins = Annotated[list[str] | None, typer.Option(help="Import this module first; may be repeated", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What `vlmrl list` is to list."""

    name: str | None = None
    as_json: bool = False
    plugins: tuple[str, ...] = ()
    data_root: Path | None = None
    cache: Path | None = None


def load_said(recipe: str | Path, overrides: list[str] | None, also: Callable[[Config], list[str]] | None = None) -> ResolvedRecipe:
    """`config.load.load`, and a line for each file that was found by its name."""
    from vlmrl.config.load import load

    loaded = load(recipe, overrides or [], also=also)
    for note in loaded.notes:
        say(note)
    return loaded


def suite_said(name: str) -> Path:
    """The file of a suite, with the same line."""
    from vlmrl.evals.ask.suite import find_suite

    found = find_suite(name)
    if found.line is not None:
        say(found.line)
    return found.path


def say(line: str) -> None:
    """A line on stderr, from the first rank alone: stdout may be JSON or a command to copy."""
    if os.environ.get("RANK", "0") == "0":
        typer.echo(line, err=True)


def panel(title: str, *, show_default: bool = False) -> dict[str, Any]:
    """Of an option: where the help shows it."""
    return {"rich_help_panel": title, "show_default": show_default}


def given(ctx: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of the parameters `names` that stand on the command line, as they are written there."""
    sources = {one: ctx.get_parameter_source(one) for one in names}
    told = {one for one, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    return [max(one.opts, key=len) for one in ctx.command.params if one.name in told]


def method_problems(config: Config, ask: Ask | None = None) -> list[str]:
    """Problems of pass 2, beside those of pass 1; none where torch is missing (`check` then says that it skipped them)."""
    gc.disable()  # importing torch and every method makes many objects and no garbage: looking for it takes a tenth of the time
    try:
        from vlmrl.methods import method_problems

        return method_problems(config, ask)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return []
    finally:
        gc.enable()


def printable(text: str) -> str:
    """Text without control and direction characters, which could rewrite what a terminal shows; line breaks and tabs stay."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf"))


def extra(name: str) -> Any:
    """A function of an extra, as `vlmrl.extras.serve.app.make`: by name, because the core imports no extra."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def size_text(count: int) -> str:
    """Bytes as a person reads them: `1.2 GB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
