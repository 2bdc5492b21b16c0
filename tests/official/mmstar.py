"""MMStar: the questions with their parts, as the sheet of a model's answers in the authors' repository has them."""

from __future__ import annotations

from pathlib import Path

from tests.official.case import Case
from tests.support.poured import PICTURE, sheet, write_parquet

_TEXTS = ("question", "answer", "category", "l2_category")


def _pour(root: Path) -> None:
    given = sheet(root / "answers.xlsx")
    write_parquet(
        root / "mmstar.parquet",
        ({"index": int(item["index"]), "image": PICTURE} | {name: item[name] for name in _TEXTS} for item in given),
    )


CASES = (
    Case(
        repository="MMStar-Benchmark/MMStar",
        commit="88f243ab4a39cb339530085c33aecb22819881a1",
        date="2024-09-26",
        files={"eval/submits/llava_next_yi_34b_MMStar.xlsx": "answers.xlsx"},
        how="poured",
        pour=_pour,
        split="val",
        records=1500,
        rows=1500,
        looks={
            "mmstar-val-0000": {
                "options": [
                    "A: The suitcase is on the book.",
                    "B: The suitcase is beneath the cat.",
                    "C: The suitcase is beneath the bed.",
                    "D: The suitcase is beneath the book.",
                ],
                "answer": "A",
                "meta": {"category": "coarse perception/image scene and topic"},
            },
            "mmstar-val-1499": {"answer": "A"},
        },
    ),
)
