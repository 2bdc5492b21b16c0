"""MathVerse: the five versions of the one problem in the authors' template of an output file, which has the records whole."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="ZrrSkywalker/MathVerse",
        commit="937b090597aeafb8e82b35d310a4bc5b9e2ea29d",
        date="2025-04-28",
        files={"output_templates/output_testmini.json": "testmini.json"},
        how="renamed",
        split="testmini",
        part="1 problem in its 5 versions",
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
            "mathverse-testmini-3425": {
                "prompt": "Answer the question that is written in the image.",
                "answer": "14",
                "meta": {"category": "Vision Only"},
            },
        },
    ),
)
