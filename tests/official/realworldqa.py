"""RealWorldQA: the official questions and answers, with their options apart, as mlrm-LEAD's evaluation keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import PICTURE, read, write_parquet

_FORM = "Please answer directly with only the letter of the correct option and nothing else."
"""Ends the official questions with options; the copy leaves it out of them, and keeps that of the other questions."""


def _record(item: dict[str, Any]) -> dict[str, Any]:
    lines = [item["question"], item["options"], _FORM] if item["options"] else [item["question"]]
    return {"image": PICTURE, "image_path": f"{item['id']}.webp", "question": "\n".join(lines), "answer": item["answer"]}


def _pour(root: Path) -> None:
    write_parquet(root / "data/test-00000-of-00001.parquet", map(_record, read(root / "realworldqa.jsonl")))


CASES = (
    Case(
        repository="ProIg-Chaa/mlrm-LEAD",
        commit="da1ac8e54d716587cc2f86e58531992f30de1234",
        date="2026-05-12",
        files={"data/realworldqa.jsonl": "realworldqa.jsonl"},
        how="poured",
        pour=_pour,
        copied_from="RealWorldQA, by way of mlrm-LEAD's evaluation",
        split="test",
        records=765,
        rows=765,
        looks={
            "realworldqa-test-000": {
                "prompt": "In which direction is the front wheel of the car on the right side facing?\nA. Left\nB. Straight\nC. Right",
                "options": ["A. Left", "B. Straight", "C. Right"],
                "answer": "C",
            },
            "realworldqa-test-002": {"prompt": "how many pedestrians are there?", "answer_type": "number", "answer": "0"},
            "realworldqa-test-006": {"prompt": "Are we required to stop", "answer_type": "exact_text", "answer": "Yes"},
            "realworldqa-test-731": {"options": ["A. Uphill", "B. Downhill"], "answer_type": "choice", "answer": "A"},
        },
    ),
)
