"""DocVQA: all validation questions, as a repository with a model carries them, and twelve as the challenge's own file has them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.official.case import Case

_ASK = "\nAnswer the question using a single word or phrase."
"""Theirs, behind every question."""


def _pour(root: Path) -> None:
    """`{question_id, question, answer: [..], image}` a line, to the challenge's file."""
    items = [json.loads(line) for line in (root / "val.jsonl").read_text(encoding="utf-8").strip().split("\n")]
    records = [
        {
            "questionId": item["question_id"],
            "question": item["question"].removesuffix(_ASK),
            "image": f"documents/{item['image']}",
            "answers": item["answer"],
        }
        for item in items
    ]
    (root / "val_v1.0.json").write_text(json.dumps({"data": records}), encoding="utf-8")


CASES = (
    Case(
        repository="TempleX98/MoVA",
        commit="52f83e5b3a7755bc75f720580b0749cda98e5abc",
        date="2024-06-28",
        copied_from="the challenge",
        files={"playground/data/eval/docvqa/val.jsonl": "val.jsonl"},
        how="poured",
        pour=_pour,
        split="validation",
        records=5349,
        rows=5349,
        looks={
            "docvqa-validation-49153": {
                "images": ["documents/pybv0228_81.png"],
                "prompt": "What is the ‘actual’ value per 1000, during the year 1975? Answer with a single word or phrase.",
                "gt": {"answers": ["0.28"]},
            },
            "docvqa-validation-26167": {"images": ["documents/ffbg0227_2.png"], "gt": {"answers": ["2", "page 2"]}},
        },
    ),
    Case(
        repository="tiennvcs/docvqa",
        commit="40be0fd3e81af624d2cceefcb1c68412952cfebf",
        date="2021-10-02",
        copied_from="the challenge",
        files={"visualize_docvqa/static/smallval/": ""},
        how="unchanged",
        split="validation",
        part="12 questions over 3 pages, with their pictures",
        records=12,
        rows=12,
        looks={
            "docvqa-validation-26167": {
                "images": ["documents/ffbg0227_2.png"],
                "prompt": "what is the page no or page mentioned ? Answer with a single word or phrase.",
                "gt": {"answers": ["2", "page 2"]},
            },
            "docvqa-validation-21711": {"images": ["documents/ffjw0228_11.png"], "gt": {"answers": ["1,354", "$1,354"]}},
        },
    ),
)
