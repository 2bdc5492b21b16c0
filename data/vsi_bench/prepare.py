"""VSI-Bench: sizes, distances, counts, directions and routes in clips of rooms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.hf_rows import Record, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main
from vlmrl.extras.importers.prepare.video_choice import choice_row, video_row

NUMBERS = ("object_abs_distance", "object_counting", "object_size_estimation", "room_size_estimation")
CHOICES = (
    *("object_rel_direction_easy", "object_rel_direction_medium", "object_rel_direction_hard"),
    *("object_rel_distance", "route_planning", "obj_appearance_order"),
)
NOTE = "These are frames of a video."


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Numbers are `regression` rows, the rest `choice`. The category is the task of the published tables: the three directions are one."""
    for item in records(root, "test-*.parquet"):
        yield _row(item, split)


def _row(item: Record, split: str) -> Row:
    name, kind = f"vsi_bench-{item['id']}", item["question_type"]
    if kind not in (*NUMBERS, *CHOICES):
        raise DataError(f"{name}: unknown question_type {kind!r}; known: {', '.join((*NUMBERS, *CHOICES))}")
    category = "object_rel_direction" if kind.startswith("object_rel_direction") else kind
    meta = {"split": split, "scene": item["scene_name"], "category": category, "question_type": kind}
    video, question = f"{item['dataset']}/{item['scene_name']}.mp4", item["question"]
    if kind in CHOICES:
        options, answer = item["options"], item["ground_truth"]
        return choice_row(id=name, task="vsi_bench", video=video, question=question, options=options, answer=answer, meta=meta, note=NOTE)
    number = float(item["ground_truth"])
    row = video_row(id=name, task="vsi_bench", video=video, question=f"{question.strip()} Answer with one number.", meta=meta, note=NOTE)
    return {**row, "answer_type": "regression", "answer": str(item["ground_truth"]), "gt": {"number": number}}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
