"""MMBench, English, dev of 2023-07-12: index, question, hint, options and answer, as LLaVA's evaluation keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import PICTURE, read, sheet, write_parquet


def _record(item: dict[str, str], asked: dict[str, Any]) -> dict[str, Any]:
    """The hint is what LLaVA's prompt has before the question."""
    before, _, _ = asked["prompt"].rpartition(f"{item['question']}\nA. ")
    return {
        "index": int(item["index"]),
        "question": item["question"],
        "hint": before.strip() or "nan",
        **{letter: item.get(letter, "nan") for letter in "ABCD"},
        "answer": item["answer"],
        "category": "",
        "L2-category": "",
        "image": PICTURE,
    }


def _pour(root: Path) -> None:
    given, asked = sheet(root / "answers.xlsx"), read(root / "answers.jsonl")
    write_parquet(root / "en/dev-00000-of-00001.parquet", map(_record, given, asked))


_ANSWERS = "playground/data/eval/mmbench/answers/mmbench_dev_20230712/llava-v1.5-13b.jsonl"
_SLIDES = "Does Madelyn's snowboard slide down a hill in less time when it has"
_UPLOAD = "playground/data/eval/mmbench/answers_upload/mmbench_dev_20230712/llava-v1.5-13b.xlsx"

CASES = (
    Case(
        repository="Haoming2000/VLM-Benchmarks",
        commit="6d394c981c5f7300c12905b2d5bbb14898399730",
        date="2024-10-22",
        files={_ANSWERS: "answers.jsonl", _UPLOAD: "answers.xlsx"},
        how="poured",
        pour=_pour,
        copied_from="`mmbench_dev_20230712.tsv`, by way of LLaVA's evaluation",
        part="the version of 2023-07-12, whose count is another than that of the download; without categories",
        split="dev",
        records=4377,
        rows=4377,
        looks={
            "mmbench-dev-00000241": {
                "answer": "B",
                "meta": {"question_group": "mmbench-dev-00000241", "rotation": 0},
            },
            "mmbench-dev-01000241": {
                "options": [
                    f"A. {_SLIDES} a layer of wax or when it does not have a layer of wax?",
                    f"B. {_SLIDES} a thin layer of wax or a thick layer of wax?",
                ],
                "answer": "A",
                "meta": {"question_group": "mmbench-dev-00000241", "rotation": 1},
            },
        },
    ),
)
