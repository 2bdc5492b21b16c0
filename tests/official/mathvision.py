"""MATH-Vision: the authors' repository, with its pictures."""

from __future__ import annotations

from functools import partial

from tests.official.case import Case

_OF = partial(Case, repository="mathllm/MATH-V", commit="a1f5cc3add200c0cd080fad463e500f44ef1fb41", date="2025-05-16", how="unchanged")

CASES = (
    _OF(
        split="test",
        files={"data/test.jsonl": "data/test.jsonl", "images/": "images/"},
        records=3040,
        rows=3040,
        looks={
            "mathvision-test-1": {"images": ["images/1.jpg"], "answer_type": "math", "answer": "60", "meta": {"category": "arithmetic"}},
            "mathvision-test-3": {"answer_type": "choice", "answer": "C", "meta": {"difficulty": "1"}},
            "mathvision-test-15": {
                "answer": "A",
                "options": ["A. Wednesday", "B. Thursday", "C. Friday", "D. Tuesday", "E. Sunday"],
            },
            "mathvision-test-490": {"answer_type": "choice", "answer": "C", "meta": {"category": "analytic geometry"}},
            "mathvision-test-3040": {"answer_type": "math", "answer": "55"},
        },
    ),
    _OF(
        split="testmini",
        files={"data/testmini.jsonl": "data/testmini.jsonl", "images/": "images/"},
        records=304,
        rows=304,
        looks={
            "mathvision-testmini-4": {
                "prompt": "How many different digits can you find in this picture?\n<image1>",
                "answer_type": "math",
                "answer": "6",
            },
            "mathvision-testmini-5": {"answer": "61"},
        },
    ),
)
