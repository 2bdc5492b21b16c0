"""Video-MME: all columns of the official questions, as Video-R1's evaluation keeps them."""

from __future__ import annotations

from pathlib import Path

from tests.official.case import Case
from tests.support.poured import read, write_parquet

_COLUMNS = ("video_id", "duration", "domain", "sub_category", "url", "videoID", "question_id", "task_type", "question", "options", "answer")


def _pour(root: Path) -> None:
    given = read(root / "eval_videomme.json")
    write_parquet(root / "videomme/test-00000-of-00001.parquet", ({name: item[name] for name in _COLUMNS} for item in given))


CASES = (
    Case(
        repository="qizhongtan/Video-ToC",
        commit="bbf9451a05a09a2b061072503a83b4842efb802a",
        date="2026-04-23",
        files={"Evaluation/eval_videomme.json": "eval_videomme.json"},
        how="poured",
        pour=_pour,
        copied_from="Video-MME, by way of Video-R1's evaluation set",
        split="test",
        records=2700,
        rows=2700,
        looks={
            "video_mme-001-1": {
                "video": "data/fFjv93ACGo8.mp4",
                "options": ["A. Apples.", "B. Candles.", "C. Berries.", "D. The three kinds are of the same number."],
                "answer": "C",
                "meta": {"category": "short", "domain": "Knowledge", "question_type": "Counting Problem"},
            },
            "video_mme-900-3": {"video": "data/5KlS-p5eYH8.mp4", "answer": "A", "meta": {"category": "long", "domain": "Multilingual"}},
        },
    ),
)
