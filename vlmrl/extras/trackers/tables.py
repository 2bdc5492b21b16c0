"""Tables of texts for trackers: each has a way of its own, and accelerate knows that of wandb alone.

Called in the training thread, since trackers take values of a step in one order only.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from vlmrl.run.tracking import Table


def _wandb(tracker: Any, name: str, table: Table, step: int) -> None:
    tracker.log_table(name, columns=list(table[0]), data=[list(row) for row in table[1]], step=step)


def _tensorboard(tracker: Any, name: str, table: Table, step: int) -> None:
    tracker.writer.add_text(name, markdown(table), global_step=step)
    tracker.writer.flush()


def _trackio(tracker: Any, name: str, table: Table, step: int) -> None:
    import pandas  # pyright: ignore[reportMissingImports]
    import trackio  # pyright: ignore[reportMissingImports]

    frame = pandas.DataFrame([list(row) for row in table[1]], columns=list(table[0]))
    tracker.run.log({name: trackio.Table(dataframe=frame)}, step=step)


def _swanlab(tracker: Any, name: str, table: Table, step: int) -> None:
    import swanlab  # pyright: ignore[reportMissingImports]

    headers, rows = [str(column) for column in table[0]], [["" if cell is None else str(cell) for cell in row] for row in table[1]]
    tracker.run.log({name: swanlab.echarts.Table().add(headers, rows)}, step=step)


def _mlflow(tracker: Any, name: str, table: Table, step: int) -> None:
    import mlflow  # pyright: ignore[reportMissingImports]

    columns = {column: [row[i] for row in table[1]] for i, column in enumerate(table[0])}
    mlflow.log_table(columns, artifact_file=f"{name}/step-{step:08d}.json", run_id=tracker.active_run.info.run_id)


WAYS: dict[str, Callable[[Any, str, Table, int], None]] = {
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "swanlab": _swanlab,
    "mlflow": _mlflow,
}
"""Tracker -> how it takes a table. The others of accelerate take none."""


def send(tracker: Any, name: str, table: Table, step: int) -> None:
    """Send a table to a tracker that takes one."""
    way = WAYS.get(getattr(tracker, "name", ""))
    if way is not None:
        way(tracker, name, table, step)


def markdown(table: Table) -> str:
    """A table in Markdown. Nothing in a cell is markup: characters that would be are written as entities."""

    def cell(value: Any) -> str:
        if value is None or isinstance(value, float):
            return "" if value is None else f"{value:.4g}"
        text = "".join(f"&#{ord(c)};" if c in _MARKUP else c for c in html.escape(str(value)))
        return text.replace("\n", "<br>")

    columns, rows = table
    lines = [[cell(name) for name in columns], ["---"] * len(columns), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_MARKUP = "|*_`[]\\~"
