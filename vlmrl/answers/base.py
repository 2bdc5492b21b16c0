"""What an answer type is: what a prompt asks for, how gold answers are checked and written, how answers are scored and drawn.

One file of this package per type; a plug-in adds one in the same way:

    @answer_type("polygon")
    class Polygon(AnswerType):
        ask = "the outline as JSON [[x, y], ...]"
        main = "polygon_iou"
        metrics = (Metric("polygon_iou", "polygon IoU", scored("polygon_iou")),)

        def check(self, gt): ...
        def score(self, answer, sample): ...

`examples/polygon.py` is a whole one. Everything that differs between types is asked here; no other module compares type names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vlmrl.errors import RowError
from vlmrl.registry import Catalogue
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.foreign import ForeignRow, Gold
    from vlmrl.answers.marks import Pen

Scored = tuple[tuple[float, ...] | None, tuple[float, ...], dict[str, float]]
"""Prediction (None: not readable; empty: no numbers), gold answer, scores by name in [0, 1]."""
Draw = Callable[["Pen", Any], None]
"""Draws the value of one key of `gt`. What it cannot read is a problem of the pen, never an exception."""


class ScoredRecord(Protocol):
    """What metrics read of a record of evaluation (`evals.score.records.Record`)."""

    @property
    def answer_type(self) -> str: ...

    @property
    def scores(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Metric:
    """A number per record of evaluation, or None where it does not apply. Its mean over the records to which it applies is reported."""

    name: str
    """In tasks, `summary.json` and `eval.best`."""
    label: str
    """In tables."""
    of: Callable[[Any], float | None]
    common: bool = False
    """Of every answer type, such as the number of tokens; stands behind the others in tables."""

    def __call__(self, record: Any) -> float | None:
        return self.of(record)


def scored(name: str) -> Callable[[ScoredRecord], float | None]:
    """Make a metric that reads the score of that name."""
    return lambda record: record.scores.get(name)


def at_least(name: str, threshold: float) -> Callable[[ScoredRecord], float | None]:
    """Make a metric that is 1 where the score of that name reaches the threshold, else 0."""
    return lambda record: None if name not in record.scores else float(record.scores[name] >= threshold)


class AnswerType:
    """One kind of answer. A subclass overrides what its kind has and is registered by `answer_type`."""

    name: str
    """Set when it is registered; `answer_type` of rows, recipes and tasks."""
    ask: str = "the answer"
    """What the prompt asks for: `Give <ask> in <answer></answer>.`"""
    main: str
    """The score that says how good an answer is."""
    metrics: tuple[Metric, ...]
    """Columns of tables; the first stands for the type."""
    more_metrics: tuple[Metric, ...] = ()
    """Further metrics that a task may name."""
    right_at: float = 1.0
    """Main score from which an answer counts as right; less than 1 where the score is an overlap."""
    reserved: tuple[str, ...] = ()
    """Keys of `gt` that rows of other types must not have: there they are a wrong `answer_type`."""
    in_frame: bool = False
    """Whether answers are places in a picture, so that drawing them needs `meta.frame`."""
    numbers_leak: bool = False
    """Whether any single number of the gold answer gives it away in a hint."""
    draws: tuple[tuple[str, Draw], ...] = ()
    """Keys of `gt` and how each is drawn, in rows of any type."""
    drawn_with: tuple[str, ...] = ()
    """Further keys of `gt` that drawing reads."""

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        """Check the ground truth of a row.

        Returns:
            `gt` as rows keep it, with values in the form that `write` and `score` read.

        Raises:
            RowError: `missing_key`, `bad_type` or `bad_value`, with the key.
        """
        return dict(gt)

    def write(self, gt: Mapping[str, Any]) -> str | None:
        """Write the gold answer as text, of checked ground truth; None if it does not determine one."""
        return None

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """Read and score one answer (the text between the tags; None: there is none).

        Returns:
            Prediction and gold answer as flat numbers, and the scores by name, each in [0, 1]; `main` is always among them.

        Raises:
            ValueError: the row lacks what scoring needs.
        """
        raise NotImplementedError

    def draw(self, pen: Pen, answer: str) -> None:
        """Draw an answer; one that cannot be read is not drawn."""

    def convert(self, value: object, row: ForeignRow) -> Gold:
        """Convert the gold answer of another trainer's row. What comes out must score 1 when it is read back.

        Raises:
            RowError: `answer`, or those of `ForeignRow`.
        """
        raise RowError("answer_type", f"answer type '{self.name}' cannot be made from rows of this shape; write them in our own schema")


A = TypeVar("A", bound=AnswerType)

METRICS: Catalogue[Metric] = Catalogue("metric")
"""Metrics by name, those of answer types and those of every record."""
ANSWER_TYPES: Catalogue[AnswerType] = Catalogue("answer type", renamed={"ocr": "short_text", "open": "exact_text"})
"""Every answer type by name, after `import vlmrl.answers`."""


def _main_score(record: ScoredRecord) -> float | None:
    return record.scores.get(ANSWER_TYPES[record.answer_type].main) if record.answer_type in ANSWER_TYPES else None


METRICS.add("score", Metric("score", "score", _main_score))
"""The main score, whatever the type; None where the scores are another program's."""


def answer_type(name: str) -> Callable[[type[A]], type[A]]:
    """Register a class of answers, and the metrics that it names.

    Raises:
        ValueError: the name, or that of another metric, is taken; or the class lacks a docstring, metrics or the main score.
    """

    def register(cls: type[A]) -> type[A]:
        # checked here, when the module is imported, instead of at the first row of the type
        given = {"main": getattr(cls, "main", None), "metrics": getattr(cls, "metrics", None), "a docstring": cls.__doc__}
        lacking = [key for key, value in given.items() if not value]
        if lacking:
            raise ValueError(f"answer type '{name}' needs {' and '.join(lacking)}")
        if name in ANSWER_TYPES:
            raise ValueError(f"answer type '{name}' is registered twice")
        kind = cls()
        kind.name = name
        for metric in (*kind.metrics, *kind.more_metrics):
            METRICS.add(metric.name, metric)
        ANSWER_TYPES.add(name, kind)
        return cls

    return register
