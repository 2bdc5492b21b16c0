"""OCRBench: the question file of the authors' repository."""

from __future__ import annotations

from tests.official.case import Case

CASES = (
    Case(
        repository="Yuliang-Liu/MultimodalOCR",
        commit="794c36d6423cf1d5764081128bcaeb46b240def6",
        date="2026-04-28",
        files={"OCRBench/OCRBench/OCRBench.json": "OCRBench/OCRBench.json"},
        how="unchanged",
        split="test",
        records=1000,
        rows=1000,
        looks={
            "ocrbench-test-0000": {
                "images": ["OCRBench_Images/IIIT5K/test/918_1.png"],
                "prompt": "what is written in the image?",
                "gt": {"answers": ["CENTRE"]},
                "meta": {"category": "Regular Text Recognition", "origin": "IIIT5K"},
            },
            "ocrbench-test-0084": {"gt": {"answers": ["ANTONIOS", "ANTONIO'S"]}},
            "ocrbench-test-0900": {"gt": {"answers": ["y _ { 2 } = - 1\n", "y_2 = - 1\n"], "formula": True}},
        },
    ),
)
