"""Video-MME: questions with four options about clips of seconds to an hour, without subtitles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main
from vlmrl.extras.importers.prepare.video_choice import choice_row, found_video


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """The category is the length of the clip, as in the published tables: short, medium, long."""
    for item in records(root, "videomme/test-*.parquet"):
        yield choice_row(
            id=f"video_mme-{item['question_id']}",
            task="video_mme",
            video=found_video(root, f"data/{item['videoID']}"),
            question=item["question"],
            options=item["options"],
            answer=item["answer"],
            meta={
                "split": split,
                "video_id": item["videoID"],
                "category": item["duration"],
                "domain": item["domain"],
                "question_type": item["task_type"],
            },
        )


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("test",))

if __name__ == "__main__":
    main(DATASET)
