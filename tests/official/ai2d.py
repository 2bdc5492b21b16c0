"""AI2D: the whole test split, as a repository with a model carries it, in the columns of the Hub's Parquet files."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.official.case import Case
from tests.support.samples import parquet_bytes

_ASK = "\nAnswer with the option's letter from the given choices directly."
"""Theirs, behind every question."""


def _pour(root: Path) -> None:
    """A question with its options in a text to the question, the options beside it, and the index of the right one as text."""
    records = []
    for line in (root / "test.jsonl").read_text(encoding="utf-8").strip().split("\n"):
        item = json.loads(line)
        question, *options = re.split(r"\n[A-D]\. ", item["question"].removesuffix(_ASK))
        answer = str("ABCD".index(item["answer"]))
        records.append({"question": question, "options": options, "answer": answer, "image": {"bytes": "standin:diagram.png"}})
    (root / "data").mkdir()
    (root / "data/test-00000-of-00001.parquet").write_bytes(parquet_bytes(records))


CASES = (
    Case(
        repository="TempleX98/MoVA",
        commit="52f83e5b3a7755bc75f720580b0749cda98e5abc",
        date="2024-06-28",
        copied_from="the Allen Institute for AI",
        files={"playground/data/eval/ai2d/test.jsonl": "test.jsonl"},
        how="poured",
        pour=_pour,
        split="test",
        records=3088,
        rows=3088,
        looks={
            "ai2d-test-0000": {
                "prompt": "What do animals respire into the air?",
                "options": ["A. Hydrogen", "B. Photosynthesis", "C. Oxygen", "D. Carbon Dioxide"],
                "answer": "D",
            },
            "ai2d-test-0001": {"options": ["A. C", "B. B", "C. E", "D. G"], "answer": "C"},
            "ai2d-test-3087": {"prompt": "What is the letter F pointing to in the diagram?", "answer": "B"},
        },
    ),
)
