"""What an audit of rows found: every row is accounted for, by source and by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

SHOWN = 5
"""Messages that are listed with their first row; all rows are counted."""


@dataclass(kw_only=True)
class SourceAudit:
    """One source under one answer format. `rows` is the sum of `good` and of all `reasons`."""

    path: str
    answer_format: str
    used_by: list[str]
    rows: int = 0
    good: int = 0
    longest_prompt: int = 0
    """Tokens."""
    reasons: Counter[str] = field(default_factory=Counter[str])
    alike: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """Message -> the first row that was left out with it, and how many more were; of the first few messages."""
    firsts: dict[str, str] = field(default_factory=dict[str, str])
    """The first row that was left out for each reason."""
    shape: str | None = None
    """Adapter that read the rows."""

    def duplicate(self) -> None:
        """The row is the same as an earlier one."""
        self.reasons["duplicate (kept first)"] += 1

    def accept(self, tokens: int) -> None:
        """The row is good."""
        self.good += 1
        self.longest_prompt = max(self.longest_prompt, tokens)

    def reject(self, reason: str, line: str) -> None:
        """The row is left out, as `line` says with its place."""
        self.reasons[reason] += 1
        self.firsts.setdefault(reason, line)
        if (message := line.partition(": ")[2]) in self.alike or len(self.alike) < SHOWN:
            first, more = self.alike.get(message, (line, -1))
            self.alike[message] = first, more + 1

    @property
    def examples(self) -> list[str]:
        """The first rows that were left out; of those with the same message the first, with the number of others."""
        return [first + (f" (and {more} more with the same)" if more else "") for first, more in self.alike.values()]


@dataclass(kw_only=True)
class AuditReport:
    """What `vlmrl check` shows. `problems` would stop or spoil training; `notes` are for the eye."""

    sources: list[SourceAudit] = field(default_factory=list[SourceAudit])
    problems: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)

    def table(self) -> Table:
        """One line per source: every row, by what became of it."""
        table = Table("source", "format", "used by", "rows", "good", "left out", "longest prompt", caption="\n".join(self.notes) or None)
        for s in self.sources:
            left = ", ".join(f"{count} {reason}" for reason, count in sorted(s.reasons.items())) or "-"
            cells = (s.path, s.answer_format, ", ".join(s.used_by), str(s.rows), str(s.good), left, f"{s.longest_prompt} tokens")
            table.add_row(*(Text(cell, overflow="fold") for cell in cells))
        return table
