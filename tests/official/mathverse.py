"""MathVerse: all questions and answers, as a repository of a training project has them, and one problem of the authors' repository.

The former lacks the keys that are for judges, among them `question_for_eval`.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.official.case import Case


def _pour(root: Path) -> None:
    """`sample_index` counts from 0 there, from 1 in the release."""
    items = json.loads((root / "mathverse.json").read_text(encoding="utf-8"))
    records = [{**item, "sample_index": str(item["sample_index"] + 1)} for item in items]
    (root / "testmini.json").write_text(json.dumps(records), encoding="utf-8")


CASES = (
    Case(
        repository="josephtey/multimodal-reasoning",
        commit="9e74b976bf76ff109503c0efe34bec15b79c6fb4",
        date="2024-06-12",
        copied_from="AI4Math/MathVerse",
        files={"dataset/eval/mathverse/mathverse.json": "mathverse.json"},
        how="poured",
        pour=_pour,
        split="testmini",
        records=3940,
        rows=3930,
        skipped={
            r"bad_value: answer 'A\nC' is several": 5,
            r"bad_value: answer 'C\nD' is several": 5,
        },
        looks={
            "mathverse-testmini-0001": {
                "prompt": "As shown in the figure, in triangle ABC, it is known that angle A = 80.0, angle B = 60.0, point D is on AB and "
                "point E is on AC, DE parallel BC, then the size of angle CED is ()\nChoices:\nA:40°\nB:60°\nC:120°\nD:140°",
                "answer_type": "choice",
                "answer": "D",
                "meta": {"category": "Text Dominant", "problem": "1"},
            },
            "mathverse-testmini-1695": {"answer": "A", "meta": {"category": "Vision Only", "problem": "339"}},
            "mathverse-testmini-2145": {"answer": "B", "meta": {"category": "Vision Only", "problem": "429"}},
            "mathverse-testmini-2585": {"answer": "C", "meta": {"category": "Vision Only", "problem": "517"}},
            "mathverse-testmini-3425": {"answer_type": "math", "answer": "14", "meta": {"problem": "685"}},
            "mathverse-testmini-3940": {
                "prompt": "Answer the question that is written in the image.",
                "answer": "D",
                "meta": {"category": "Vision Only", "problem": "788"},
            },
        },
    ),
    Case(
        repository="ZrrSkywalker/MathVerse",
        commit="937b090597aeafb8e82b35d310a4bc5b9e2ea29d",
        date="2025-04-28",
        files={"output_templates/output_testmini.json": "testmini.json"},
        how="renamed",
        split="testmini",
        part="1 problem in its 5 versions, of the template of an output file",
        records=5,
        rows=5,
        looks={
            "mathverse-testmini-3421": {
                "images": ["images/images_version_1-4/image_685.png"],
                "answer_type": "math",
                "answer": "14",
                "meta": {"category": "Text Dominant", "problem": "685"},
            },
            "mathverse-testmini-3424": {"prompt": "Find L.", "meta": {"category": "Vision Dominant"}},
        },
    ),
)
