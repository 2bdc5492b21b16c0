"""TempCompass: what changes over time in a clip, in the three forms that are scored by rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.hf_rows import Record, file_or_parquet
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, letter, main, read_json
from vlmrl.extras.importers.prepare.video_choice import choice_row, found_video, video_row

FORMS = ("multi-choice", "yes_no", "caption_matching")
_LABEL = re.compile(r"(?:(?:Option|Caption|Sentence)\s+)?[A-Z0-9]\s*[.:)]\s+", re.IGNORECASE)


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Splits are the forms of the question; the category is what changes (`dim`)."""
    for number, item in enumerate(file_or_parquet(root, f"questions/{split}.json", _repository, f"{split}/test-*.parquet")):
        yield _row(item, root, f"tempcompass-{split}-{number:04d}", split)


def _repository(path: Path) -> Iterator[Record]:
    """The records of the Parquet files from `{video: {dim: [{question, answer}]}}`, which the repository has."""
    for video, dims in read_json(path).items():
        for dim, items in dims.items():
            for item in items:
                yield {**item, "video_id": video, "dim": dim}


def _row(item: Record, root: Path, name: str, split: str) -> Row:
    meta = {"split": split, "video_id": item["video_id"], "category": item["dim"]}
    video = found_video(root, f"videos/{item['video_id']}")
    if split == "yes_no":
        row = video_row(id=name, task="tempcompass", video=video, question=f"{item['question'].strip()} Answer yes or no.", meta=meta)
        if item["answer"] not in ("yes", "no"):
            raise DataError(f"{name}: answer {item['answer']!r} is neither yes nor no")
        return {**row, "answer_type": "exact_text", "answer": item["answer"]}
    question, *lines = [line for line in item["question"].splitlines() if line.strip()]
    if item["answer"].strip() not in [line.strip() for line in lines]:
        raise DataError(f"{name}: answer {item['answer']!r} is none of the lines below the question")
    right = letter([line.strip() for line in lines].index(item["answer"].strip()))
    texts = [_LABEL.sub("", line.strip(), count=1) for line in lines]
    return choice_row(id=name, task="tempcompass", video=video, question=question, options=texts, answer=right, meta=meta)


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=FORMS)

if __name__ == "__main__":
    main(DATASET)
