"""`vlmrl.rows`: what `vlmrl check --rows` finds, of rows that are Python objects, shown in the cell of a notebook with drawn pictures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl import api
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.asking import asking_of
from vlmrl.evals.ask.rows import rows_suite
from vlmrl.extras.python.result import framed
from vlmrl.extras.python.rows import RowsFile, given, said_by_row
from vlmrl.run.audit_known import CACHE
from vlmrl.run.check_rows import audit_rows, rows_config, told
from vlmrl.run.ui import Ui

if TYPE_CHECKING:
    from vlmrl.config.schema import Config
    from vlmrl.evals.ask.suite import Suite
    from vlmrl.run.audit import AuditReport


@dataclass(frozen=True, repr=False)
class CheckedRows:
    """What a check of rows has found. A notebook shows rows with their pictures and answers drawn; `print` gives the counts."""

    report: AuditReport
    file: RowsFile
    config: Config
    counted: bool

    @property
    def total(self) -> int:
        """How many rows there are."""
        return self.report.sources[0].rows

    @property
    def good(self) -> int:
        """How many of them training can use."""
        return self.report.sources[0].good

    @property
    def problems(self) -> list[str]:
        """A line for each of the first rows that cannot be used."""
        return [self.file.by_row(line) for line in self.report.sources[0].examples]

    def __repr__(self) -> str:
        lines = told(self.report, counted=self.counted)
        own = f"{self.report.sources[0].path}: " if self.file.written else ""
        return "\n".join(self.file.by_row(line.removeprefix(own)) for line in lines)

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "rows.html")
            api.audited(self.config, page, Ui(quiet=True), rows=True)
            return framed(page.read_text(encoding="utf-8"))


def rows(given_rows: Any, *, model: str | Path | None = None, **source: Any) -> CheckedRows:
    """Check rows as training reads them: every picture is decoded, every gold answer scored. No weights are loaded.

    Args:
        given_rows: what `vlmrl.grpo` takes.
        model: folder or hub id whose tokens and pixels are meant; None: pixels of a tiny one, and no tokens are counted.
        source: keys of a source, as `answer_type="number"` or `columns={"prompt": "question"}`.

    Returns:
        `.good` of `.total` rows can be used, `.problems` names others.

    Raises:
        ConfigError: a key of the source is wrong, or these are no rows.
        DataError: a row cannot be written, or a file not be read.
    """
    file, config = _config(given_rows, source, model)
    return CheckedRows(audit_rows(config, Ui(quiet=True)), file, config, model is not None)


def suite(checkpoint: Path, named: object, given_rows: Any, source: Mapping[str, Any]) -> Suite:
    """The suite that asks a checkpoint rows, as `vlmrl eval --rows` does.

    Args:
        named: a suite that the caller names; there may be none beside rows.

    Raises:
        ConfigError, DataError: as `rows`, or the checkpoint cannot be used.
    """
    if named is not None or given_rows is None:
        keys = f" and keys of their source, as {', '.join(source)}" if source else ""
        raise ConfigError(f"evaluate: give either a suite, or rows={keys}")
    file, config = _config(given_rows, source, None)
    with said_by_row(file):
        made = rows_suite(config.stages[0].source, Path(config.data.root), asking_of(checkpoint), say=Ui(quiet=True).say)
    return made.model_copy(update={"data_root": config.data.root})


def _config(given_rows: Any, source: Mapping[str, Any], model: str | Path | None) -> tuple[RowsFile, Config]:
    file = given(given_rows, CACHE.expanduser(), source)
    with suppress(ConfigError):  # rows that leave a choice are shown as they are, with what is missing
        file = file.looked(source)
    keys = {key: value for key, value in file.source(source).items() if key not in ("path", "media_root")}
    settings = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    media_root = Path(file.media_root).absolute()
    return file, rows_config(Path(file.path), settings, media_root=media_root, model=None if model is None else str(model))
