"""What an audit of rows found: every row is accounted for, by source and by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

SHOWN = 5
"""Rows that are listed with their message; all are counted."""


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
    examples: list[str] = field(default_factory=list)
    firsts: dict[str, str] = field(default_factory=dict[str, str])
    """The first row that was left out for each reason."""
    shape: str | None = None
    """Adapter that read the rows."""

    def count(self, reason: str, line: str) -> None:
        """One more row, which is left out."""
        self.rows += 1
        self.reject(reason, line)

    def duplicate(self) -> None:
        """One more row, which is the same as an earlier one."""
        self.rows += 1
        self.reasons["duplicate (kept first)"] += 1

    def accept(self, tokens: int) -> None:
        """One more row, which is good."""
        self.rows += 1
        self.good += 1
        self.longest_prompt = max(self.longest_prompt, tokens)

    def reject(self, reason: str, line: str) -> None:
        self.reasons[reason] += 1
        self.firsts.setdefault(reason, line)
        if len(self.examples) < SHOWN:
            self.examples.append(line)


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
