"""The command `compare`: two evaluations, or two methods over several seeds, question by question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from vlmrl.cli.names import Plugins, say
from vlmrl.errors import ConfigError

BETWEEN = "::"
"""Stands for `--` between the two sides, which the parser of the line would swallow."""


class TwoSides(TyperCommand):
    """A command whose arguments may be parted by `--`; options may stand behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words with `--` kept."""
        return super().parse_args(ctx, [BETWEEN if word == "--" else word for word in args])


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", cls=TwoSides)(compare)


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="A B | A... -- B...",
            help="Runs, folders that `vlmrl eval` wrote, or files of records: one and one, or one per seed of each method",
            show_default=False,
        ),
    ],
    published: Annotated[bool, typer.Option("--published", help="In place of B: the figures that papers print for A's tasks")] = False,
    tolerance: Annotated[float, typer.Option(help="How much a primary metric may drop", min=0)] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder for comparison.md, .json and .html", show_default=False)] = None,
    plugin: Plugins = None,
    force: Annotated[bool, typer.Option("--force", help="Compare in spite of unlike settings, and say so on top")] = False,
) -> None:
    """Compare two evaluations question by question, or two methods over seeds. Exit code 1 if B is significantly worse on a task.

    Two single runs are two checkpoints: whether their methods differ is told by several seeds of each, A1 A2 A3 -- B1 B2 B3.

    Example: vlmrl compare runs/base runs/new --out comparison
    """
    first, second = parted(sides, published)
    from vlmrl.evals.score.runfiles import evaluation_at
    from vlmrl.extras.seeds.published import beside_published
    from vlmrl.plugins import import_plugins
    from vlmrl.run.ui import Ui

    import_plugins(plugin or (), "--plugin")
    ui = Ui()
    for given in (*first, *second):
        if (taken := evaluation_at(given)) != given:
            say(f"{given}: its last evaluation is compared, {taken}")
    if published:
        found = beside_published(first[0])
        if out is not None:
            found.write(out)
        ui.show(found)
        return
    if len(first) > 1 or len(second) > 1:
        from vlmrl.extras.seeds.compare import compare_seeds

        result = compare_seeds(first, second, tolerance=tolerance, force=force)
    else:
        from vlmrl.evals.score.compare import compare_folders

        result = compare_folders(first[0], second[0], tolerance=tolerance, force=force)
    if out is not None:
        result.write(out)
    ui.show(result)
    if out is not None and len(first) == len(second) == 1 and all((side / "summary.json").is_file() for side in (first[0], second[0])):
        from vlmrl.evals.page import PAGES

        ui.say(f"report: {PAGES['comparison'](result, out / 'comparison.html')}")
    if result.regressed:
        raise typer.Exit(1)


def parted(sides: Sequence[str], published: bool) -> tuple[list[Path], list[Path]]:
    """The evaluations of both sides; those of the second are none with `published`.

    Raises:
        ConfigError: there are too few, or too many without `--` between them.
    """
    words = list(sides)
    if published:
        if len(words) != 1:
            raise ConfigError("--published stands in place of B; give one evaluation")
        return [Path(words[0])], []
    if words.count(BETWEEN) > 1:
        raise ConfigError("`--` stands once, between the two sides")
    if BETWEEN in words:
        place = words.index(BETWEEN)
        first, second = words[:place], words[place + 1 :]
    elif len(words) > 2:
        raise ConfigError(f"which of the {len(words)} are one side? write `--` between the two: vlmrl compare A1 A2 A3 -- B1 B2 B3")
    else:
        first, second = words[:1], words[1:]
    if not first or not second:
        raise ConfigError("compare needs a second evaluation, or --published in its place")
    return [Path(word) for word in first], [Path(word) for word in second]
