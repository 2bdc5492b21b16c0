"""TimeLens-100K: queries and spans of its videos of more than three minutes, as TimeLens2 keeps them: in the words of a conversation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.poured import read

_TIME = re.compile(r"(?:\d+:)*\d+(?:\.\d+)?")


def _seconds(text: str) -> float:
    return sum(float(part) * 60**i for i, part in enumerate(reversed(text.split(":"))))


def _entry(item: dict[str, Any]) -> dict[str, Any]:
    """A question is the query, then a line about the form of the answer; the answer has two times for each span."""
    video = item["messages"][0]["content"][0]["video_url"]
    events = []
    for question, answer in zip(item["messages"][::2], item["messages"][1::2], strict=True):
        text = question["content"] if isinstance(question["content"], str) else question["content"][1]["text"]
        times = [_seconds(found) for found in _TIME.findall(answer["content"])]
        query = text.removeprefix("<VIDEO_CONTEXT>").strip().split("\n")[0]
        events.append({"query": query, "span": [list(pair) for pair in zip(times[::2], times[1::2], strict=True)]})
    return {
        "source": video["url"].split("/")[0],
        "video_path": f"{video['url'].rstrip('/')}.mp4",
        "duration": video["processed_video_length"] / video["processed_fps"],
        "events": events,
    }


def _pour(root: Path) -> None:
    lines = [json.dumps(_entry(item)) for item in read(root / "copy.jsonl")]
    (root / "TimeLens-100K").mkdir()
    (root / "TimeLens-100K/timelens-100k.jsonl").write_text("\n".join(lines), encoding="utf-8")


CASES = (
    Case(
        repository="MCG-NJU/TimeLens2",
        commit="a5ce4501e74b9d13216cd5e6a4e723774ac19a6b",
        date="2026-07-21",
        files={"sft/training_data_annotations/timelens-100k/timelens-100k_over180_1137_format2.jsonl": "copy.jsonl"},
        how="poured",
        pour=_pour,
        copied_from="TimeLens-100K, by way of TimeLens2's training data",
        part="the 1,137 videos of more than 180 s; their lengths are those of the sampled frames",
        split="train",
        records=5679,
        rows=5679,
        looks={
            "timelens-train-00001-0": {
                "video": "TimeLens-100K/videos/didemo/53819037@N00_8893941905_0a957d015a.mp4",
                "prompt": 'To pinpoint the event "When can we see a woman in a green jacket speaking into a megaphone?" in the video, '
                'determine its precise time period: start and end in seconds with two decimals, for example "12.54 to 17.83".',
                "gt": {"time": [169.0, 179.0]},
            },
            "timelens-train-00005-4": {"gt": {"time": [226.0, 232.0]}},  # 03:46 to 03:52
        },
    ),
)
