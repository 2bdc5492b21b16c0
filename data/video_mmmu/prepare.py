"""Video-MMMU: what is learned from a lecture, in three tracks: perception, comprehension, adaptation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.hf_rows import Record, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main
from vlmrl.extras.importers.prepare.video_choice import choice_row, video_row

SUBJECTS = {
    "Art": "Art Art_Theory Design Music",
    "Business": "Accounting Economics Finance Manage Marketing",
    "Engineering": "Agriculture Architecture_and_Engineering Computer_Science Electronics Energy_and_Power Materials "
    "Mechanical_Engineering",
    "Humanities": "History Literature Psychology Sociology",
    "Medicine": "Basic_Medical_Science Clinical_Medicine Diagnostics_and_Laboratory_Medicine Pharmacy Public_Health",
    "Science": "Biology Chemistry Geography Math Physics",
}
"""Discipline, which is the folder of its videos -> subjects."""
IGNORE = "Please ignore the quiz question in the last frame of the video."
APPLY = "Watch and learn from the video, then apply it to this question. The picture for the question is at the end of the video."


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Ids are `<origin>_<subject>_<number>`; the category is the discipline."""
    for item in records(root, f"{split}/test-*.parquet"):
        yield _row(item, split)


def _row(item: Record, split: str) -> Row:
    subject = "_".join(item["id"].split("_")[1:-1])
    discipline = next((name for name, subjects in SUBJECTS.items() if subject in subjects.split()), None)
    if discipline is None:
        raise DataError(f"{item['id']}: unknown subject {subject!r}")
    name, video = f"video_mmmu-{split}-{item['id']}", f"{discipline}/{item['id']}.mp4"
    meta = {"split": split, "category": discipline, "subject": subject}
    note = APPLY if split == "Adaptation" else IGNORE
    if item["options"]:
        options, answer = item["options"], item["answer"]
        question = item["question"]
        return choice_row(id=name, task="video_mmmu", video=video, question=question, options=options, answer=answer, meta=meta, note=note)
    row = video_row(id=name, task="video_mmmu", video=video, question=item["question"], meta=meta, note=note)
    return {**row, "answer_type": "exact_text", "answer": item["answer"].strip()}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("Perception", "Comprehension", "Adaptation"))

if __name__ == "__main__":
    main(DATASET)
