"""MMVU: the validation file of the authors' repository."""

from __future__ import annotations

from functools import partial

from tests.official.case import Case

_OF = partial(
    Case,
    repository="yale-nlp/MMVU",
    commit="4d54223d912f498707c105ab645a921abce6e39a",
    date="2025-02-27",
    files={"data/validation.json": "validation.json"},
    how="unchanged",
    split="validation",
    records=1000,
)

CASES = (
    _OF(
        options={"form": "choice"},
        rows=625,
        skipped={"not multiple choice": 375},
        looks={
            "mmvu-validation_1": {
                "video": "videos/Chemistry/0.mp4",
                "options": ["A. 10.0", "B. 5.0", "C. 12.0", "D. 15.0", "E. 20.0"],
                "answer": "A",
                "meta": {"category": "Chemistry"},
            },
            "mmvu-validation_3": {"prompt": "Which process is shown in the animation?", "answer": "B"},
            "mmvu-validation_999": {"answer": "E"},
        },
    ),
    _OF(
        options={"form": "all"},
        rows=1000,
        looks={
            "mmvu-validation_0": {"video": "videos/Art/0.mp4", "answer_type": "exact_text", "answer": "Dolly Zoom"},
            "mmvu-validation_2": {"answer": "Depth-First Search (DFS)"},
        },
    ),
)
