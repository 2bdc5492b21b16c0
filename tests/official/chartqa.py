"""ChartQA: the whole test split, as a repository with a model carries it for evaluation, in the two files of the authors' repository."""

from __future__ import annotations

import json
from pathlib import Path

from tests.official.case import Case

_ASK = "\nAnswer the question using a single word or phrase."
"""Theirs, behind every question."""


def _pour(root: Path) -> None:
    """The first 1,250 lines are the questions of people, the others those of a program, both in the order of the authors' files."""
    items = [json.loads(line) for line in (root / "test_all.jsonl").read_text(encoding="utf-8").strip().split("\n")]
    target = root / "ChartQA Dataset/test"
    target.mkdir(parents=True)
    for kind, part in (("human", items[:1250]), ("augmented", items[1250:])):
        records = [
            {"imgname": item["image"].removeprefix("test/png/"), "query": item["question"].removesuffix(_ASK), "label": item["answer"]}
            for item in part
        ]
        (target / f"test_{kind}.json").write_text(json.dumps(records), encoding="utf-8")


CASES = (
    Case(
        repository="TempleX98/MoVA",
        commit="52f83e5b3a7755bc75f720580b0749cda98e5abc",
        date="2024-06-28",
        copied_from="vis-nlp/ChartQA",
        files={"playground/data/eval/chartqa/test_all.jsonl": "test_all.jsonl"},
        how="poured",
        pour=_pour,
        split="test",
        records=2500,
        rows=2500,
        looks={
            "chartqa-test-0000": {
                "images": ["ChartQA Dataset/test/png/41699051005347.png"],
                "prompt": "How many food item is shown in the bar graph? Answer with a single word or number.",
                "gt": {"answers": ["14"]},
                "meta": {"category": "human"},
            },
            "chartqa-test-1249": {
                "images": ["ChartQA Dataset/test/png/multi_col_100695.png"],
                "gt": {"answers": ["56"]},
                "meta": {"category": "human"},
            },
            "chartqa-test-1250": {"gt": {"answers": ["47"]}, "meta": {"category": "augmented"}},
            "chartqa-test-2499": {"images": ["ChartQA Dataset/test/png/two_col_47.png"], "gt": {"answers": ["841961"]}},
        },
    ),
)
