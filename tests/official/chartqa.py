"""ChartQA: the test questions that another project sorted by difficulty, put together again as the repository has them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.official.case import Case

_PARTS = [
    (chart, kind, question) for chart in ("complex", "simple") for kind in ("human", "augmented") for question in ("complex", "simple")
]


def _pour(root: Path) -> None:
    target = root / "ChartQA Dataset/test"
    target.mkdir(parents=True)
    for wanted in ("human", "augmented"):
        files = [root / f"{chart}_{kind}_{question}.json" for chart, kind, question in _PARTS if kind == wanted]
        items = [item for file in files for item in json.loads(file.read_text(encoding="utf-8"))]
        (target / f"test_{wanted}.json").write_text(json.dumps(items), encoding="utf-8")


CASES = (
    Case(
        repository="RobustCQA/ChartQA-Split",
        commit="d20e38ad159dede1538fe672c0ad1fa452f23624",
        date="2024-10-04",
        copied_from="vis-nlp/ChartQA",
        files={f"dataset/{chart}/test_{kind}_{question}.json": f"{chart}_{kind}_{question}.json" for chart, kind, question in _PARTS},
        how="poured",
        pour=_pour,
        split="test",
        part="2,373 of the 2,500 questions",
        records=2373,
        rows=2373,
        looks={
            "chartqa-test-0000": {
                "images": ["ChartQA Dataset/test/png/00795994017065.png"],
                "prompt": "Which country recorded the highest death rates due to outdoor air pollution over the years? "
                "Answer with a single word or number.",
                "gt": {"answers": ["Myanmar"]},
                "meta": {"category": "human"},
            },
            "chartqa-test-2372": {
                "images": ["ChartQA Dataset/test/png/two_col_973.png"],
                "gt": {"answers": ["46.49"]},
                "meta": {"category": "augmented"},
            },
        },
    ),
)
