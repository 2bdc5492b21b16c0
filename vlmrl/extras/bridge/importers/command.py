"""`vlmrl eval --import`: results of another harness as a folder that `vlmrl compare` reads. Everything heavy is imported inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from vlmrl.errors import ConfigError


def import_(
    path: Path,
    kind: str | None,
    out: Path | None,
    *,
    rows: Path | None,
    join: str,
    plugins: Sequence[str],
    task: Sequence[str] | None,
    **told: str | None,
) -> None:
    """Read results of lmms-eval or VLMEvalKit as records, to compare and to look at.

    Args:
        path: file of the other harness; for lmms-eval also a folder of them.
        kind: `lmms-eval` or `vlmevalkit`.
        out: folder for records and summary.json.
        rows: that were asked, to score as ours are; `join` says how answers find them.
        task: the name of the task.
        told: `model`, `answer_format`, `version` and `primary` of `importers.run.run_import`.

    Raises:
        ConfigError: options that do not fit together.
        DataError: files or rows that cannot be used.
    """
    if kind is None or out is None:
        raise ConfigError(f"--import: give also {'--kind lmms-eval or vlmevalkit' if kind is None else '--out, a folder for the records'}")
    if join not in ("id", "index"):
        raise ConfigError(f"--join: expected id or index, got '{join}'")
    if task and len(task) > 1:
        raise ConfigError("--task: --import reads one task; name it once")
    from vlmrl.extras.bridge.importers.run import run_import
    from vlmrl.plugins import import_plugins

    import_plugins(plugins, "--plugin")
    for note in run_import(path, kind, out, rows=rows, join=join, task=task[0] if task else None, **told):
        typer.echo(note)
