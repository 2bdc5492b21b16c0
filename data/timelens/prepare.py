"""TimeLens: the training set TimeLens-100K and the three corrected benchmarks of TimeLens-Bench. One row per query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, grounding_prompt, main, official, read_json, read_jsonl, time_span

BENCHES = ("charades", "activitynet", "qvhighlights")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Queries with one span in seconds; a query with several spans is no time_span row."""
    for video, duration, key, query, spans in _train(root) if split == "train" else _bench(root, split):
        name = f"timelens-{split}-{key}"
        cut = [time_span(start, end, duration) for start, end in spans]
        if len(cut) != 1 or cut[0] is None:
            yield Skipped(name, "empty span" if len(cut) == 1 else "several spans")
            continue
        yield {
            "id": name,
            "task": "temporal_grounding",
            "answer_type": "time_span",
            "data_type": "video",
            "video": video,
            "prompt": grounding_prompt(query),
            "gt": {"time": list(cut[0])},
            "meta": {"split": split, "duration": duration},
        }


def _train(root: Path) -> Iterator[tuple[str, float, str, str, Any]]:
    folder = "TimeLens-100K"
    for number, entry in read_jsonl(official(root, f"{folder}/timelens-100k.jsonl")):
        for i, event in enumerate(entry["events"]):
            span = event["span"]
            spans = span if span and isinstance(span[0], list) else [span]  # the authors' code reads [s, e] as well as [[s, e]]
            yield f"{folder}/videos/{entry['video_path']}", entry["duration"], f"{number:05d}-{i}", event["query"], spans


def _bench(root: Path, split: str) -> Iterator[tuple[str, float, str, str, Any]]:
    folder = "TimeLens-Bench"
    for video, entry in read_json(official(root, f"{folder}/{split}-timelens.json")).items():
        for i, (span, query) in enumerate(zip(entry["spans"], entry["queries"], strict=True)):
            yield f"{folder}/videos/{split}/{video}.mp4", entry["duration"], f"{video}-{i}", query, [span]


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train", *BENCHES))

if __name__ == "__main__":
    main(DATASET)
