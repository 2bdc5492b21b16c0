"""The document of `vlmrl check` shows rows as a model will see them: processed pixels, gold marks on them, and why rows were rejected.

`CheckRows` collects the rows while `vlmrl check` reads the sources, and writes the page, worst first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np

from vlmrl.answers.marks import MarkedFrames, Marks
from vlmrl.data.source import BadRow
from vlmrl.extras.pages.documents.pictures import Pictures
from vlmrl.extras.pages.documents.shapes import Doc
from vlmrl.extras.pages.kept.media import chosen, encoded, most_frames
from vlmrl.extras.pages.overlay import gold_marks, target_of
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
EMPTY: Doc = {**dict.fromkeys(("id", "answer", "type"), ""), "facts": [], "marks": asdict(Marks()), "picture": None}
"""Of a row that could not be read."""


@dataclass(kw_only=True)
class CheckRows:
    """Collects the rows of sources: the first `limit` good ones and the first `limit` rejected ones of each; all are counted."""

    budget: int
    """`data.max_prompt_tokens`."""
    limit: int = ROWS
    rows: list[Doc] = field(default_factory=list[Doc])
    counts: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Source -> how many rows are `good` and `rejected`."""

    def wants(self, source: str) -> bool:
        """Whether one more good row of this source would be kept; its pixels need not be fetched otherwise."""
        return self.counts.get(source, {}).get("good", 0) < self.limit

    def add(self, source: str, prompt: Prompt, media: ProcessedMedia | None) -> None:
        """A good row with its first medium, if it has any and `wants` said so."""
        if self._counted(source, "good"):
            self.rows.append(row_of(source, prompt.sample, media, tokens=len(prompt.ids), budget=self.budget))

    def reject(self, source: str, sample: Sample, reason: str, message: str, media: ProcessedMedia | None = None) -> None:
        """A row that was read and cannot be used. `media` is its first medium, where that is not the fault."""
        if self._counted(source, "rejected"):
            self.rows.append(row_of(source, sample, media, reason=reason, message=message.removeprefix(f"{reason}: ")))

    def reject_unread(self, source: str, bad: BadRow) -> None:
        """A row that could not be read."""
        if self._counted(source, "rejected"):
            texts = {"place": f"{bad.file}:{bad.line}", "question": bad.excerpt, "reason": bad.reason, "message": bad.message}
            self.rows.append({**EMPTY, "source": source, **texts, "flags": ["rejected"], "order": order_of(["rejected"])})

    def write(self, path: Path) -> Path:
        """Write the page: one self-contained HTML file, the worst rows first."""
        from vlmrl.extras.pages.view.save import write_documents

        folder = {"name": "Data check", "path": "", "start": "check/page", "runs": [], "others": []}
        return write_documents({"folder": folder, "check/page": check_doc(self)}, path, title="Data check - vlmrl", kind="check")

    def _counted(self, source: str, kind: str) -> bool:
        """Count a row; whether it is one of those that are shown."""
        counts = self.counts.setdefault(source, {"good": 0, "rejected": 0})
        counts[kind] += 1
        return counts[kind] <= self.limit


def row_of(
    source: str, sample: Sample, media: ProcessedMedia | None, *, tokens: int = 0, budget: int = 1, reason: str = "", message: str = ""
) -> Doc:
    """A row with what the model will see of it, and its place in the order of `order_of`. `media`: its first medium; `tokens`: of the
    prompt, and `budget` those that it may have; `reason`: of the rejection, without one the row is good."""
    share, marks, facts = tokens / budget, Marks(), [] if reason else [f"{tokens} tokens, {tokens / budget:.0%} of the budget"]
    smallest = inside = span = picture = None
    if media is not None:
        most, times = most_frames(media), media.times
        kept = chosen(len(media.frames), most)
        shown = MarkedFrames(indices=tuple(kept), times=None if times is None else tuple(float(times[i]) for i in kept))
        marks, picture = gold_marks(target_of(sample, media.original_size), shown), encoded(media, most, lossless=True)
        smallest = smallest_box(marks, media.handle.tokens / media.handle.grid_thw[0])
        if smallest is not None:
            facts.append(f"smallest box {smallest:.4g} vision tokens")
        if times is not None and marks.spans:
            inside = min(frames_within(times, (one.start, one.end)) for one in marks.spans)
            span = min(one.end - one.start for one in marks.spans)
            facts.append(f"{inside} frames in the shortest span")
        if times is not None and len(times) > 1:
            facts.append(f"frames up to {max(float(b - a) for a, b in pairwise(times)):.4g} s apart")
        if len(sample.media) > 1:
            facts.append(f"{len(sample.media) - 1} more media that are not shown")
    holds = {
        "rejected": bool(reason),
        "undrawn": bool(marks.problems),
        "long": share > FULL,
        "small": smallest is not None and smallest < SMALL,
        "short": inside is not None and inside < 2,
    }
    flags = [name for name in FLAGS if holds[name]]
    return {
        **{"source": source, "place": sample.source, "id": sample.id, "question": sample.asked, "answer": sample.answer},
        **{"type": sample.answer_type, "reason": reason, "message": message, "facts": facts, "flags": flags},
        **{"marks": asdict(marks), "picture": picture, "order": order_of(flags, share, smallest, span)},
    }


def order_of(flags: Sequence[str], share: float = 0.0, smallest: float | None = None, span: float | None = None) -> tuple[float, ...]:
    """What rows are sorted by: the worst flag; among equals the larger share of the token budget, the smaller box in vision tokens, the
    shorter span in seconds."""
    worst = min((list(FLAGS).index(name) for name in flags), default=len(FLAGS))
    return worst, -share, inf if smallest is None else smallest, inf if span is None else span


def smallest_box(marks: Marks, tokens: float) -> float | None:
    """Area of the smallest box in vision tokens, for a picture of `tokens` tokens."""
    areas = [abs((m.points[1][0] - m.points[0][0]) * (m.points[1][1] - m.points[0][1])) for m in marks.shapes if m.kind == "box"]
    return min(areas) / 10_000 * tokens if areas else None


def frames_within(times: np.ndarray, span: tuple[float, float]) -> int:
    """Frames that come on screen in [start, end), and the one that is on screen at the start."""
    inside = int(((times > span[0]) & (times < span[1])).sum())
    return inside + bool((times <= span[0]).any())


def check_doc(rows: CheckRows) -> Doc:
    """The rows of a data check, the worst first."""
    ordered, pictures = sorted(rows.rows, key=lambda row: row["order"]), Pictures(inline=True)
    sources = [
        {"name": name, **counts} | {f"shown_{kind}": min(n, rows.limit) for kind, n in counts.items()}
        for name, counts in rows.counts.items()
    ]
    shown = [
        {key: value for key, value in row.items() if key not in ("picture", "order")}
        | {"media": [] if row["picture"] is None else [pictures.medium("check", str(number), BytesIO(row["picture"]))]}
        for number, row in enumerate(ordered)
    ]
    flags = {name: words for name, words in FLAGS.items() if any(name in row["flags"] for row in ordered)}
    return {"name": "Data check", "sources": sources, "flags": flags, "rows": shown}
