"""DocVQA: all validation questions in the SQuAD form that the authors published, and twelve as the challenge's download has them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.official.case import Case
from tests.support.samples import parquet_bytes


def _pour(root: Path) -> None:
    """`[{context, qas: [{id, question, answers: [{text}]}]}]`, a page each, to the columns of the Hub's Parquet files."""
    pages = json.loads((root / "squad.json").read_text(encoding="utf-8"))
    records = [
        {
            "questionId": str(item["id"]),
            "question": item["question"],
            "question_types": None,
            "image": {"bytes": "standin:page.png"},
            "answers": [answer["text"] for answer in item["answers"]],
        }
        for page in pages
        for item in page["qas"]
    ]
    (root / "DocVQA").mkdir()
    (root / "DocVQA/validation-00000-of-00001.parquet").write_bytes(parquet_bytes(records))


CASES = (
    Case(
        repository="mineshmathew/DocVQA",
        commit="618dee574c98137da83aac857d7b68934618735c",
        date="2021-04-11",
        files={"BERT_baseline/data_in_squad_format/docvqa_val_squad_format.json": "squad.json"},
        how="poured",
        pour=_pour,
        split="validation",
        records=5349,
        rows=5349,
        looks={
            "docvqa-validation-223": {
                "prompt": "What is the title of the chart? Answer with a single word or phrase.",
                "gt": {"answers": ["sargasso sea temperature"]},
            },
            "docvqa-validation-397": {"gt": {"answers": ["0.57%"]}},
            "docvqa-validation-56640": {"gt": {"answers": ["chris"]}},
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
