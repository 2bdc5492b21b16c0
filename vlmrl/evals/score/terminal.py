"""Tables for the terminal in which no word is cut or folded, at any width."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from vlmrl.evals.score.table import Cells, Paragraphs, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table


def table(cells: Cells, title: str | None = None) -> CellTable:
    """Render cells in rich. Text is shown as it is: no markup, no control characters."""
    return CellTable(cells, title)


class CellTable:
    """A table for the terminal in which every word is whole: columns wrap between words alone, and where that is still too wide each row is
    a paragraph. Prints in rich."""

    def __init__(self, cells: Cells, title: str | None):
        self.cells, self.title = cells, title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Paragraphs]:
        from rich.table import Column, Table
        from rich.text import Text

        header, *rows = [[visible(cell) for cell in row] for row in self.cells]
        widths = fitted([header, *rows], options.max_width - 3 * len(header) - 1)
        if widths is None:
            names = [" ".join(name.split()) for name in header]
            told = [", ".join(f"{name} {cell}" for name, cell in zip(names[1:], row[1:], strict=False) if cell) for row in rows]
            lines = [f"  {row[0]}: {text}" for row, text in zip(rows, told, strict=True)]
            yield Paragraphs(lines if self.title is None else [self.title, *lines])
            return
        columns = [Column(header=Text(name), width=width) for name, width in zip(header, widths, strict=True)]
        out = Table(*columns, title=None if self.title is None else Text(visible(self.title)))
        for row in rows:
            out.add_row(*map(Text, row))  # `Text`, not a string: rich reads brackets in strings as markup
        yield out


def fitted(rows: Cells, room: int) -> list[int] | None:
    """Choose widths of columns that take at most `room` characters together and hold every word whole; None where there are none."""
    from rich.cells import cell_len

    columns = list(zip_longest(*rows, fillvalue=""))
    widths = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    wanted = [max(cell_len(line) for cell in column for line in cell.splitlines() or [""]) for column in columns]
    if sum(widths) > room:
        return None
    while sum(widths) < min(room, sum(wanted)):
        widest = max(range(len(widths)), key=lambda n: wanted[n] - widths[n])
        widths[widest] += 1
    return widths
