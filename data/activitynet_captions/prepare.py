"""ActivityNet Captions as temporal grounding: one row per sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, grounding_prompt, main, official, read_json, time_span

SUFFIXES = (".mp4", ".mkv", ".webm")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """`{video: {duration, timestamps, sentences}}` to time spans in seconds, cut to the length of the clip."""
    path = official(root, f"{split}.json", f"captions/{split}.json")
    for video, annotation in read_json(path).items():
        times, sentences, duration = annotation["timestamps"], annotation["sentences"], annotation["duration"]
        if len(times) != len(sentences):
            raise DataError(f"{path}: {video} has {len(times)} timestamps and {len(sentences)} sentences")
        file = next(
            (f"videos/{video}{suffix}" for suffix in SUFFIXES if (root / f"videos/{video}{suffix}").is_file()), f"videos/{video}.mp4"
        )
        for number, ((start, end), sentence) in enumerate(zip(times, sentences, strict=True)):
            name = f"activitynet_captions-{split}-{video}-{number}"
            span = time_span(start, end, duration)
            if span is None or not sentence.strip():
                yield Skipped(name, "empty span" if span is None else "empty sentence")
                continue
            yield {
                "id": name,
                "task": "temporal_grounding",
                "answer_type": "time_span",
                "data_type": "video",
                "video": file,
                "prompt": grounding_prompt(sentence),
                "gt": {"time": list(span)},
                "meta": {"split": split, "video_id": video, "duration": duration},
            }


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train", "val_1", "val_2"))

if __name__ == "__main__":
    main(DATASET)
