"""VGR-SFT: questions with a thought that points at regions. One row per conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet

from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official

IMAGES = "llava_next_raw_format"
_REGION = re.compile(r"<SOT>\s*(\[[^\]]*\])\s*<EOT>\s*(?:<image>)?", re.IGNORECASE)
_STRAY = re.compile(r"<SOT>|<EOT>|<image>", re.IGNORECASE)
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*(.*)", re.DOTALL)
_FINAL = re.compile(r"(.*)\bFinal answer\s*:\s*(.*)", re.DOTALL | re.IGNORECASE)


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """Regions, shares of the sides in the release, become `<bbox>[x1, y1, x2, y2]</bbox>` of 0 to 1000 in the thought and `gt.boxes`."""
    file = parquet.ParquetFile(official(root, f"data/vgr_{split}.parquet", f"vgr_{split}.parquet"))
    records = (record for batch in file.iter_batches(batch_size=256) for record in batch.to_pylist())
    for number, record in enumerate(records):
        name = f"vgr-{split}-{number:06d}"
        turns = record["conversations"]
        parts = _THOUGHT.fullmatch(turns[-1]["value"]) or _FINAL.fullmatch(turns[-1]["value"])
        if len(turns) != 2 or parts is None or not parts[2].strip():
            yield Skipped(name, "not one question with a thought and an answer")
            continue
        boxes = [_box(found[1]) for found in _REGION.finditer(parts[1])]
        if None in boxes:
            yield Skipped(name, "region that is no box")
            continue
        thought = _REGION.sub(lambda found: f"<bbox>{json.dumps(_box(found[1]))}</bbox>", parts[1])
        yield {
            "id": name,
            "task": "grounded_qa",
            "answer_type": "exact_text",
            "data_type": "image",
            "image": f"{IMAGES}/{record['image']}",
            "prompt": _STRAY.sub("", turns[0]["value"]).strip(),
            "answer": _STRAY.sub("", parts[2]).strip(),
            "thought": _STRAY.sub("", thought).strip(),
            "gt": {"boxes": boxes},
            "meta": {"split": split, "frame": "norm1000", "part": record["image"].split("/")[0]},
        }


def _box(text: str) -> list[float] | None:
    """(x1, y1, x2, y2) of 0 to 1000; None if it is no box with an area."""
    try:
        values = [round(1000 * min(max(float(value), 0.0), 1.0), 1) for value in json.loads(text)]
    except (TypeError, ValueError):  # written by a model: now and then it is no list of numbers
        return None
    return values if len(values) == 4 and values[0] < values[2] and values[1] < values[3] else None


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("shortcot", "longcot"))

if __name__ == "__main__":
    main(DATASET)
