"""QVHighlights, in three forms: the moment of a query, all of its moments, or the saliency of the relevant two-second clips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, grounding_prompt, main, official, read_jsonl, time_span

CLIP = 2.0
"""Seconds; clip i starts at 2i and is named by its middle, 2i + 1."""


def rows(root: Path, split: str, task: str) -> Iterator[Row | Skipped]:
    """`moment`: queries with one window, in seconds. `moments`: all of them, every window in `gt.windows` and the longest as `gt.time`.
    `highlight`: all, with the mean of the annotators' saliency (0 to 4) per clip."""
    for _, item in read_jsonl(official(root, f"highlight_{split}_release.jsonl")):
        name = f"qvhighlights-{split}-{task}-{item['qid']}"
        record = _highlight(item) if task == "highlight" else _moments(item) if task == "moments" else _moment(item)
        if isinstance(record, str):
            yield Skipped(name, record)
            continue
        meta = {"split": split, "duration": item["duration"], "windows": item["relevant_windows"]}
        yield {"id": name, "data_type": "video", "video": f"videos/{item['vid']}.mp4", **record, "meta": meta}


def _moment(item: dict[str, Any]) -> Row | str:
    """The row's own part, or why there is none."""
    windows = item["relevant_windows"]
    if len(windows) != 1:
        return "not one window"
    span = time_span(windows[0][0], windows[0][1], item["duration"])
    return "empty span" if span is None else _grounding(item, {"time": list(span)})


def _moments(item: dict[str, Any]) -> Row | str:
    """For evaluation by the official measures, which compare an answer with every window."""
    spans = [span for start, end in item["relevant_windows"] if (span := time_span(start, end, item["duration"])) is not None]
    if not spans:
        return "empty span"
    longest = max(spans, key=lambda span: span[1] - span[0])
    return _grounding(item, {"time": list(longest), "windows": [list(span) for span in spans]})


def _grounding(item: dict[str, Any], gt: dict[str, Any]) -> Row:
    return {"task": "temporal_grounding", "answer_type": "time_span", "prompt": grounding_prompt(item["query"]), "gt": gt}


def _highlight(item: dict[str, Any]) -> Row | str:
    """`gt.highlights`: [seconds, saliency] of each relevant clip; the single annotators' scores, for HIT@1 and mAP, in `gt.saliency`."""
    marks = [
        [CLIP * clip + CLIP / 2, round(sum(scores) / len(scores), 2)]
        for clip, scores in zip(item["relevant_clip_ids"], item["saliency_scores"], strict=True)
    ]
    if not any(saliency > 0 for _, saliency in marks):
        return "no saliency above 0"
    return {
        "task": "highlight_detection",
        "answer_type": "highlight",
        "prompt": f'Which moments of the video show this, and how well, with a saliency from 0 to 4: "{" ".join(item["query"].split())}"?',
        "gt": {
            "highlights": marks,
            "saliency": {"duration": item["duration"], "clips": item["relevant_clip_ids"], "scores": item["saliency_scores"]},
        },
    }


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train", "val"), options={"task": ("moment", "moments", "highlight")})

if __name__ == "__main__":
    main(DATASET)
