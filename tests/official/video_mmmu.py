"""Video-MMMU: the question files of the authors' repository, in the columns of the Hub's Parquet files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from tests.official.case import Case
from tests.support.samples import parquet_bytes


def _pour(track: str, root: Path) -> None:
    """`{track: {number: record}}` to the rows of `<track>/test-*.parquet`."""
    items = json.loads((root / "questions.json").read_text(encoding="utf-8"))[track]
    target = root / track / "test-00000-of-00001.parquet"
    target.parent.mkdir()
    target.write_bytes(parquet_bytes([{"question_type": None, **item} for item in items.values()]))


def _case(track: str, **facts: object) -> Case:
    of = partial(Case, repository="EvolvingLMMs-Lab/VideoMMMU", commit="88b4ac3e07326eaabda3a4afe8e7f30dd02bc143", date="2025-09-05")
    files = {f"data/{track.lower()}_video.json": "questions.json"}
    return of(split=track, files=files, how="poured", pour=partial(_pour, track), records=300, rows=300, **facts)


CASES = (
    _case(
        "Perception",
        looks={
            "video_mmmu-Perception-dev_Biology_3": {"video": "Science/dev_Biology_3.mp4", "answer": "G", "meta": {"subject": "Biology"}},
            "video_mmmu-Perception-dev_Geography_5": {"answer": "H"},
        },
    ),
    _case(
        "Comprehension",
        looks={
            "video_mmmu-Comprehension-dev_Biology_3": {"answer": "F"},
            "video_mmmu-Comprehension-dev_Geography_5": {"answer": "J"},
        },
    ),
    _case(
        "Adaptation",
        looks={
            "video_mmmu-Adaptation-dev_Biology_3": {"answer": "A", "answer_type": "choice"},
            "video_mmmu-Adaptation-validation_Chemistry_13": {"answer": "12.97", "answer_type": "exact_text"},
            "video_mmmu-Adaptation-new_Psychology_5": {"video": "Humanities/new_Psychology_5.mp4", "answer": "C"},
        },
    ),
)
