"""The document of `vlmrl check` shows rows as a model will see them: processed pixels, gold marks on them, and why rows were rejected.

`CheckRows` collects the rows while `vlmrl check` reads the sources; `write_check_page` writes them, worst first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from vlmrl.data.source import BadRow
from vlmrl.evals.score.table import visible
from vlmrl.extras.pages.documents.drawn_group import as_json
from vlmrl.extras.pages.documents.pictures import Pictures
from vlmrl.extras.pages.documents.shapes import Doc
from vlmrl.extras.pages.overlay import Marks, gold_marks
from vlmrl.extras.pages.runfiles import Frames, frames_of
from vlmrl.media.store import ProcessedMedia
from vlmrl.types import Prompt, Sample

ROWS = 24
"""Rows of each source that are shown by default."""
FULL = 0.9
"""Share of the token budget from which a prompt is called long."""
SMALL = 4.0
"""Vision tokens: a box with a smaller area is called small."""
FLAGS = {
    "rejected": "rejected",
    "undrawn": "the answer reaches outside, or cannot be drawn",
    "long": f"over {FULL:.0%} of the token budget",
    "small": f"a box below {SMALL:g} vision tokens",
    "short": "a span with fewer than two frames",
}
"""What is worth a look, the worst first."""


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One row of a source. Without `reason` it is good."""

    source: str
    place: str
    """`file:line`."""
    id: str = ""
    question: str = ""
    """Of a row that could not be read, its first characters."""
    answer: str = ""
    answer_type: str = ""
    reason: str = ""
    """Code of the rejection."""
    message: str = ""
    tokens: int = 0
    """Of the prompt."""
    share: float = 0.0
    """Of the token budget, in [0, 1]."""
    frames: Frames | None = None
    marks: Marks = field(default_factory=Marks)
    smallest: float | None = None
    """Area of the smallest true box in vision tokens; None without boxes."""
    frames_in_span: int | None = None
    """Frames that the model sees within the shortest true span; None without spans."""
    span: float | None = None
    """Seconds of the shortest true span."""
    more_media: int = 0
    """Media of the row that are not shown."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of `FLAGS`."""
        holds = {
            "rejected": bool(self.reason),
            "undrawn": bool(self.marks.problems),
            "long": self.share > FULL,
            "small": self.smallest is not None and self.smallest < SMALL,
            "short": self.frames_in_span is not None and self.frames_in_span < 2,
        }
        return tuple(name for name in FLAGS if holds[name])


@dataclass(kw_only=True)
class CheckRows:
    """Collects the rows of sources: the first `limit` good ones and the first `limit` rejected ones of each; all are counted."""

    budget: int
    """`data.max_prompt_tokens`."""
    limit: int = ROWS
    rows: list[CheckRow] = field(default_factory=list[CheckRow])
    good: dict[str, int] = field(default_factory=dict[str, int])
    rejected: dict[str, int] = field(default_factory=dict[str, int])

    def wants(self, source: str) -> bool:
        """Whether one more good row of this source would be kept; its pixels need not be fetched otherwise."""
        return self.good.get(source, 0) < self.limit

    def add(self, source: str, prompt: Prompt, media: ProcessedMedia | None) -> None:
        """A good row with its first medium, if it has any and `wants` said so."""
        keep = self.wants(source)
        self.good[source] = self.good.get(source, 0) + 1
        if keep:
            self.rows.append(good_row(source, prompt, media, self.budget))

    def reject(self, source: str, sample: Sample, reason: str, message: str, media: ProcessedMedia | None = None) -> None:
        """A row that was read and cannot be used. `media` is its first medium, where that is not the fault."""
        if self._counted(source):
            frames = None if media is None else frames_of(sample, media)
            row = CheckRow(
                source=source,
                place=sample.source,
                id=sample.id,
                question=sample.asked,
                answer=sample.answer,
                answer_type=sample.answer_type,
                reason=reason,
                message=message.removeprefix(f"{reason}: "),
                frames=frames,
                marks=_marks(frames),
            )
            self.rows.append(row)

    def reject_unread(self, source: str, bad: BadRow) -> None:
        """A row that could not be read."""
        if self._counted(source):
            place = f"{bad.file}:{bad.line}"
            self.rows.append(CheckRow(source=source, place=place, question=bad.excerpt, reason=bad.reason, message=bad.message))

    def write(self, path: Path) -> Path:
        """Write the page.

        Raises:
            StorageError: it cannot be written.
        """
        return write_check_page(path, self)

    def _counted(self, source: str) -> bool:
        self.rejected[source] = self.rejected.get(source, 0) + 1
        return self.rejected[source] <= self.limit


def good_row(source: str, prompt: Prompt, media: ProcessedMedia | None, budget: int) -> CheckRow:
    """A row with what the model will see of it. `media` is its first medium."""
    sample = prompt.sample
    frames = None if media is None else frames_of(sample, media)
    marks = _marks(frames)
    spans = [(s.start, s.end) for s in marks.spans]
    times = None if media is None else media.times
    return CheckRow(
        source=source,
        place=sample.source,
        id=sample.id,
        question=sample.asked,
        answer=sample.answer,
        answer_type=sample.answer_type,
        tokens=len(prompt.ids),
        share=len(prompt.ids) / budget,
        frames=frames,
        marks=marks,
        smallest=None if media is None else smallest_box(marks, media.handle.tokens / media.handle.grid_thw[0]),
        frames_in_span=None if times is None or not spans else min(frames_within(times, span) for span in spans),
        span=min((end - start for start, end in spans), default=None),
        more_media=max(0, len(sample.media) - 1),
    )


def _marks(frames: Frames | None) -> Marks:
    return Marks() if frames is None or frames.target is None else gold_marks(frames.target, frames.shown)


def smallest_box(marks: Marks, tokens: float) -> float | None:
    """Area of the smallest box in vision tokens, for a picture of `tokens` tokens."""
    areas = [abs((m.points[1][0] - m.points[0][0]) * (m.points[1][1] - m.points[0][1])) for m in marks.shapes if m.kind == "box"]
    return min(areas) / 10_000 * tokens if areas else None


def frames_within(times: np.ndarray, span: tuple[float, float]) -> int:
    """Frames that come on screen in [start, end), and the one that is on screen at the start."""
    inside = int(((times > span[0]) & (times < span[1])).sum())
    return inside + bool((times <= span[0]).any())


def worst_first(rows: Sequence[CheckRow]) -> list[CheckRow]:
    """By the worst flag; among equals the larger share of the token budget, the smaller box, the shorter span, the order of reading."""
    rank = {name: n for n, name in enumerate(FLAGS)}

    def key(item: tuple[int, CheckRow]) -> tuple[float, ...]:
        place, row = item
        small = float("inf") if row.smallest is None else row.smallest
        short = float("inf") if row.span is None else row.span
        return (min((rank[name] for name in row.flags), default=len(rank)), -row.share, small, short, place)

    return [row for _, row in sorted(enumerate(rows), key=key)]


def write_check_page(path: Path, rows: CheckRows | Sequence[CheckRow]) -> Path:
    """Write the page: one self-contained HTML file, the worst rows first.

    Raises:
        StorageError: it cannot be written.
    """
    from vlmrl.extras.pages.view.save import write_documents

    shown = check_doc(rows, Pictures(inline=True))
    lists = {name: [] for name in ("runs", "arms", "evaluations", "comparisons", "checks")}
    folder = {"name": "Data check", "path": "", "start": "check/page", **lists, "study": None, "several": False, "questions": None}
    return write_documents({"folder": folder, "check/page": shown}, path, title="Data check - vlmrl", kind="check")


def check_doc(rows: CheckRows | Sequence[CheckRow], pictures: Pictures) -> Doc:
    """The rows of a data check, the worst first."""
    ordered = worst_first(rows.rows if isinstance(rows, CheckRows) else rows)
    sources = list(dict.fromkeys(row.source for row in ordered))
    shown = {
        s: (sum(r.source == s and not r.reason for r in ordered), sum(r.source == s and bool(r.reason) for r in ordered)) for s in sources
    }
    found = {s: (rows.good.get(s, 0), rows.rejected.get(s, 0)) if isinstance(rows, CheckRows) else shown[s] for s in sources}
    return {
        "id": "page",
        "name": "Data check",
        "sources": [
            {"name": visible(s), "good": found[s][0], "rejected": found[s][1], "shown_good": shown[s][0], "shown_rejected": shown[s][1]}
            for s in sources
        ],
        "flags": {name: words for name, words in FLAGS.items() if any(name in row.flags for row in ordered)},
        "rows": [_row(number, row, pictures) for number, row in enumerate(ordered)],
    }


def _row(number: int, row: CheckRow, pictures: Pictures) -> Doc:
    facts = [] if row.reason else [f"{row.tokens} tokens, {row.share:.0%} of the budget"]
    if row.smallest is not None:
        facts.append(f"smallest box {row.smallest:.4g} vision tokens")
    if row.frames_in_span is not None:
        facts.append(f"{row.frames_in_span} frames in the shortest span")
    if row.frames is not None and row.frames.times is not None and 1 < row.frames.count == row.frames.total:
        facts.append(f"frames up to {max(b - a for a, b in pairwise(row.frames.times)):.4g} s apart")
    if row.more_media:
        facts.append(f"{row.more_media} more media that are not shown")
    texts = ("source", "place", "id", "question", "answer", "reason", "message")
    return {
        **{name: visible(getattr(row, name)) for name in texts},
        "type": visible(row.answer_type),
        "facts": facts,
        "flags": list(row.flags),
        "media": [] if row.frames is None else [pictures.medium("check", f"f-{number}", row.frames)],
        "marks": as_json(row.marks),
    }
