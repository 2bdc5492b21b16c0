"""MMVU: expert questions about clips of 27 subjects; multiple choice, and open questions on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official, read_json
from vlmrl.extras.importers.prepare.video_choice import choice_row, video_row


def rows(root: Path, split: str, form: str) -> Iterator[Row | Skipped]:
    """`choice` leaves out the open questions, which the authors have judged by a model; `all` has both. The category is the subject."""
    for item in read_json(official(root, f"{split}.json")):
        name = f"mmvu-{item['id']}"
        if item["question_type"] == "multiple-choice":
            options = [item["choices"][key] for key in sorted(item["choices"]) if item["choices"][key]]
            question, answer = item["question"], item["answer"]
            yield choice_row(id=name, task="mmvu", video=_video(item), question=question, options=options, answer=answer, meta=_meta(item))
        elif item["question_type"] != "open-ended":
            raise DataError(f"{name}: unknown question_type {item['question_type']!r}")
        elif form == "all":
            row = video_row(id=name, task="mmvu", video=_video(item), question=item["question"], meta=_meta(item))
            yield {**row, "answer_type": "exact_text", "answer": item["answer"].strip()}
        else:
            yield Skipped(name, "not multiple choice", listed=False)


def _video(item: dict[str, Any]) -> str:
    """The path from `videos/` on, whether the record has an address on the web or a path."""
    place = item.get("video_path") or item["video"]
    _, found, rest = place.rpartition("videos/")
    if not found:
        raise DataError(f"mmvu-{item['id']}: {place!r} is no path below videos/")
    return f"videos/{rest}"


def _meta(item: dict[str, Any]) -> dict[str, Any]:
    return {"split": "validation", "category": item["metadata"]["subject"]}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("validation",), options={"form": ("choice", "all")})

if __name__ == "__main__":
    main(DATASET)
