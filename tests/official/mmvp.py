"""MMVP: the official questions and answers, as DMLR's evaluation keeps them, in the official `Questions.csv`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import read


def _record(item: dict[str, Any]) -> list[str]:
    """Index, question, options, right answer: theirs without the sentence that DMLR puts first, and the option's text after its letter."""
    question, _, options = item["prompt"].partition("Question: ")[2].partition("\nOptions: ")
    index = item["image_path"].removeprefix("dataset/mmvp/MMVP Images/").removesuffix(".jpg")
    return [index, question, options.strip(), item["solution"][:3]]


def _pour(root: Path) -> None:
    with (root / "Questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["Index", "Question", "Options", "Correct Answer"], *map(_record, read(root / "mmvp.json"))])


CASES = (
    Case(
        repository="eric-ai-lab/DMLR",
        commit="881c21a97bd0c3419d905952428c00f2e743f0b6",
        date="2025-12-17",
        files={"data/mmvp.json": "mmvp.json"},
        how="poured",
        pour=_pour,
        copied_from="MMVP, by way of DMLR's evaluation",
        split="test",
        records=300,
        rows=300,
        looks={
            "mmvp-001": {
                "images": ["MMVP Images/1.jpg"],
                "prompt": "Are the butterfly's wings closer to being open or closed?",
                "options": ["A. Open", "B. Closed"],
                "answer": "A",
                "meta": {"question_group": "mmvp-pair-001", "corrected": False},
            },
            # The release says (a) here: the elephant of picture 99 has short tusks.
            "mmvp-099": {"options": ["A. Long", "B. Short"], "answer": "B", "meta": {"corrected": True}},
            "mmvp-300": {"answer": "B", "meta": {"question_group": "mmvp-pair-150"}},
        },
    ),
)
