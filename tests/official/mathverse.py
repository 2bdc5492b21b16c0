"""MathVerse: one problem in its five versions; all answers, by the version Vision Only; and the questions of a sixth, without pictures."""

from __future__ import annotations

import json
from pathlib import Path

from tests.official.case import Case


def _vision_only(root: Path) -> None:
    """Records without the keys that are only for judges; `sample_index` counts from 0 there, from 1 in the release."""
    items = json.loads((root / "vision_only.json").read_text(encoding="utf-8"))
    records = [{**item, "sample_index": str(item["sample_index"] + 1)} for item in items]
    (root / "testmini.json").write_text(json.dumps(records), encoding="utf-8")


def _text_only(root: Path) -> None:
    """Only the path of the picture is put in: these have none."""
    records = json.loads((root / "text_only.json").read_text(encoding="utf-8"))
    (root / "testmini.json").write_text(json.dumps([{**record, "image": "none.png"} for record in records]), encoding="utf-8")


_TEXTS = {r"090^\circ T": 1, r"053 ^\circ T": 1, "False": 2}
"""Answers by the text of an option: those of `Vision Only` are in the picture."""
_NO_OPTION = {"bad_value: answer 'A\\nC' is several": 1, "bad_value: answer 'C\\nD' is several": 1}


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
    Case(
        repository="josephtey/multimodal-reasoning",
        commit="ad541569d1d07c3e0595674d77b245b8e808f3f7",
        date="2024-05-19",
        copied_from="AI4Math/MathVerse",
        files={"dataset/eval/mathverse/mathverse_visual_only.json": "vision_only.json"},
        how="poured",
        pour=_vision_only,
        split="testmini",
        part="the version Vision Only, 788 of 3,940",
        records=788,
        rows=782,
        skipped=_NO_OPTION | {f"bad_value: answer {answer!r} is neither": count for answer, count in _TEXTS.items()},
        looks={
            "mathverse-testmini-0005": {
                "prompt": "Answer the question that is written in the image.",
                "answer_type": "choice",
                "answer": "D",
                "meta": {"category": "Vision Only", "problem": "1"},
            },
            "mathverse-testmini-3425": {"answer_type": "math", "answer": "14", "meta": {"problem": "685"}},
            "mathverse-testmini-3940": {"answer": "D", "meta": {"problem": "788"}},
        },
    ),
    Case(
        repository="ZrrSkywalker/MathVerse",
        commit="937b090597aeafb8e82b35d310a4bc5b9e2ea29d",
        date="2025-04-28",
        files={"data/testmini_text_only.json": "text_only.json"},
        how="poured",
        pour=_text_only,
        split="testmini",
        part="the version Text Only, which testmini leaves out",
        records=788,
        rows=786,
        skipped=_NO_OPTION,
        looks={
            "mathverse-testmini-0339": {"answer_type": "choice", "answer": "A"},
            "mathverse-testmini-0429": {"answer_type": "choice", "answer": "B"},
            "mathverse-testmini-0517": {"answer_type": "choice", "answer": "C"},
            "mathverse-testmini-0685": {"answer_type": "math", "answer": "14"},
        },
    ),
)
