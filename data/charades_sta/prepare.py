"""Charades-STA: when does the described thing happen? One row per annotated sentence."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, grounding_prompt, main, official, read_lines, time_span


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Lines `AO8RW 0.0 6.9##a person is putting a book on a shelf.` to time spans in seconds, cut to the length of the clip."""
    path = official(root, f"charades_sta_{split}.txt")
    videos = official(root, "Charades_v1_480", "Charades_v1").name
    durations = _durations(root / f"Charades_v1_{split}.csv")
    for number, line in read_lines(path):
        head, found, sentence = line.partition("##")
        fields = head.split()
        if not found or len(fields) != 3:
            raise DataError(f"{path}:{number}: expected 'video start end##sentence', got {line[:80]!r}")
        video, start, end = fields[0], float(fields[1]), float(fields[2])
        name = f"charades_sta-{split}-{number:05d}"
        span = time_span(start, end, durations.get(video))
        if span is None:
            yield Skipped(name, "empty span")
            continue
        yield {
            "id": name,
            "task": "temporal_grounding",
            "answer_type": "time_span",
            "data_type": "video",
            "video": f"{videos}/{video}.mp4",
            "prompt": grounding_prompt(sentence),
            "gt": {"time": list(span)},
            "meta": {"split": split, "video_id": video, **({"duration": durations[video]} if video in durations else {})},
        }


def _durations(path: Path) -> dict[str, float]:
    """Seconds of each clip, from the annotations of Charades where they are there."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: float(row["length"]) for row in csv.DictReader(file)}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train", "test"))

if __name__ == "__main__":
    main(DATASET)
