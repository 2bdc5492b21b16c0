"""Progress bars with rates and time left on a terminal; a line every few seconds in a log file. Only rank 0 speaks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

LOG_WIDTH = 160
"""Columns of tables when the output is not a terminal."""
LOG_SECONDS = 15.0
"""Seconds between progress lines when the output is not a terminal."""


class _Rate(ProgressColumn):
    """`8.1/s`."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.2g}/s")


class ProgressBar:
    """One long part. `update` takes how much is done and a few numbers to show."""

    def __init__(self, console: Console, title: str, total: int, progress: Progress | None, done: int):
        self.console, self.title, self.total, self.progress = console, title, total, progress
        self.first, self.done = done, done
        self.began = self.spoke = time.monotonic()
        self.task = None if progress is None else progress.add_task(title, total=total, completed=done, note="")

    def update(self, done: int, note: Mapping[str, float] | str = "") -> None:
        """Move the bar to `done`."""
        self.done = done
        text = note if isinstance(note, str) else "  ".join(f"{k} {v:.3g}" for k, v in note.items())
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=done, note=text)
        elif time.monotonic() - self.spoke > LOG_SECONDS and done < self.total:
            self.spoke = time.monotonic()
            self.console.print(f"{self.title}: {self.line()}  {text}", highlight=False)

    def skip(self, count: int) -> None:
        """So much is about to be done without any work: it does not count for the rate."""
        self.first += count

    def close(self) -> None:
        """Take the bar from the display."""
        if self.progress is not None and self.task is not None:
            self.progress.remove_task(self.task)

    def line(self) -> str:
        """`120/600, 8.1/s, 59 s left`."""
        rate = (self.done - self.first) / max(1e-9, time.monotonic() - self.began)
        left = f", {(self.total - self.done) / rate:.0f} s left" if rate > 0 and self.done < self.total else ""
        return f"{self.done}/{self.total}, {rate:.2g}/s{left}"


class Ui:
    """Where a run speaks to a person."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False):
        self.console = console or Console(quiet=quiet)
        if not self.console.is_terminal:
            self.console.width = LOG_WIDTH
        self._live: Progress | None = None
        """The display that is up; rich has one at a time, so a bar within a bar joins it."""

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, highlight=False)

    def print_exactly(self, lines: Iterable[str]) -> None:
        """Lines with paths or commands, which could not be copied if they were broken."""
        for line in lines:
            self.console.print(Text(line), soft_wrap=True)

    def show(self, renderable: Any) -> None:
        """A rich table or the like. A path that is longer than a line is not cut."""
        self.console.print(renderable, crop=False)

    @contextmanager
    def bar(self, title: str, total: int, *, done: int = 0) -> Iterator[ProgressBar]:
        """A progress bar for the block, below that of a block around it."""
        began = time.monotonic()
        if self._live is not None:
            inner = ProgressBar(self.console, title, total, self._live, done)
            try:
                yield inner
            finally:
                inner.close()
            return
        if self.console.is_terminal and not self.console.quiet:
            columns = (
                TextColumn("{task.description:<24}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                _Rate(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            with Progress(*columns, console=self.console) as self._live:
                try:
                    yield ProgressBar(self.console, title, total, self._live, done)
                finally:
                    self._live = None
            return
        bar = ProgressBar(self.console, title, total, None, done)
        yield bar
        self.say(f"{title}: {bar.done}/{total} in {time.monotonic() - began:.1f} s")
