"""MMMU: types, options and answers of the validation questions, as the authors' example outputs have them. Question texts are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import PICTURE, read, write_parquet


def _record(item: dict[str, Any]) -> dict[str, Any]:
    """Lists are written as Python texts, as the Parquet files have them."""
    answer = item["answer"]
    return {
        "id": item["id"],
        "question": f"<image 1> {item['id']}",
        "options": str(list(item.get("index2ans", {}).values())),
        "answer": answer if isinstance(answer, str) else str(answer),
        "question_type": item["question_type"],
        "subfield": "",
        "topic_difficulty": "",
        "image_1": PICTURE,
    }


def _pour(root: Path) -> None:
    for path in sorted((root / "outputs").glob("*/output.json")):
        write_parquet(root / path.parent.name / "validation-00000-of-00001.parquet", map(_record, read(path)))


CASES = (
    Case(
        repository="MMMU-Benchmark/MMMU",
        commit="bb0b95a945998d91dfef37e969e07d49d1139438",
        date="2025-05-19",
        files={"mmmu/example_outputs/qwen_vl/": "outputs/"},
        how="poured",
        pour=_pour,
        split="validation",
        records=900,
        rows=900,
        looks={
            "mmmu-validation_Physics_1": {
                "answer_type": "choice",
                "options": ["A. To the left", "B. To the right", "C. Towards the top of the page", "D. There is no force."],
                "answer": "A",
                "meta": {"category": "Physics"},
            },
            "mmmu-validation_Chemistry_30": {"answer_type": "exact_text", "gt": {"accepted": ["$MgS$", "MgS"]}},
            "mmmu-validation_Geography_4": {"answer": "Tampa", "gt": {"accepted": ["Tampa", "Florida"]}},
        },
    ),
)
