"""A run as an object: its numbers, what it answered, its model and its report."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl import api
from vlmrl.cli.names import extra
from vlmrl.errors import ConfigError
from vlmrl.evals.page import PAGES
from vlmrl.run.listing import line_of
from vlmrl.run.tracking import read_metrics

if TYPE_CHECKING:
    import pandas

    from vlmrl.evals.ask.run import SuiteResult

HEIGHT = 640
"""Of a page in a notebook, in pixels."""


def framed(page: str) -> str:
    """A whole page of HTML for the output of a cell: its styles and scripts stay its own."""
    return f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'


@dataclass(frozen=True)
class Page:
    """A page of HTML: a notebook shows it, and `path` is for a browser."""

    path: Path

    def _repr_html_(self) -> str:
        return framed(self.path.read_text(encoding="utf-8"))


@dataclass(frozen=True, repr=False)
class Run:
    """A run that `vlmrl.grpo`, `vlmrl.sft` or a command has made."""

    path: Path
    """Its folder. `config.yaml` in it is the recipe with every value."""

    @property
    def model(self) -> Path:
        """The folder of the trained model, which transformers, vLLM and `vlmrl` open."""
        return self.path / "final"

    @property
    def curves(self) -> pandas.DataFrame:
        """A row for each step, and a column for each number that was logged; `step` counts within `stage`.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            file = self.path / "metrics.jsonl"
            raise ConfigError(f"curves are a DataFrame: pip install 'vlmrl[trackers]' for pandas, or read the lines of {file}") from error
        return pandas.DataFrame([line for line in read_metrics(self.path / "metrics.jsonl") if line["stage"] != "run"])

    def groups(self) -> list[dict[str, Any]]:
        """The groups that the run kept (`keep` of the recipe), by step: `question`, `gold`, and in `answers` each `text` with its `rewards`
        (in the order of `columns`), their weighted sum `reward` and its `advantage`."""
        kept = extra("vlmrl.extras.pages.kept.read.KeptGroups")(self.path / "groups")
        kept.follow()
        found = [kept.record(address) for address, _ in kept.entries()]
        return sorted(found, key=lambda group: (group["global_step"], group["place"]))

    def evaluate(self, rows: Any, out: str | Path | None = None, **options: Any) -> SuiteResult:
        """Evaluate the trained model on rows, as `vlmrl.evaluate(run.model, rows=rows)` does, which takes the same options."""
        return api.evaluate(self.model, None, out, rows=rows, **options)

    def show(self) -> Page:
        """Write the report of the run. As the last line of a cell it stands in the notebook; `.path` is the file."""
        return Page(PAGES["run"](self.path))

    def __repr__(self) -> str:
        line = line_of(self.path)
        stage = "" if line.stage is None else f", stage {line.stage}, step {line.step}" + (f" of {line.steps}" if line.steps else "")
        out = [f"Run {self.path}: {line.status}{stage}"]
        file = self.path / "metrics.jsonl"
        lines = read_metrics(file) if file.is_file() else []
        for name in ("reward", "loss"):
            values = [one[name] for one in lines if name in one]
            if values:
                out.append(f"  {name}: {values[0]:.3f} at its first step, {values[-1]:.3f} at its last")
                break
        return "\n".join([*out, f"  model: {self.model}", "  .curves, .groups(), .evaluate(rows), .show()"])
