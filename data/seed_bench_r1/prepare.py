"""SEED-Bench-R1: what is the next step? A clip of the progress so far and the present view, four choices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, letter, lettered, main, official, read_jsonl

FILES = {
    "train_6k": "training_6k.jsonl",
    "val_L1": "validation_L1.jsonl",
    "val_L2": "validation_L2.jsonl",
    "val_L3": "validation_L3.jsonl",
}


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """The clip comes first, then the view. A question without progress so far has the view only.

    Raises:
        DataError: a question has no right choice among its own.
    """
    path = official(root, f"annotations/{FILES[split]}")
    for number, item in read_jsonl(path):
        choices, gold = _choices(item)
        if gold not in ("A", "B", "C", "D"):
            raise DataError(f"{path}:{number}: golden_choice_idx is {gold!r}, not one of A, B, C, D")
        if len(choices) < 4:
            raise DataError(f"{path}:{number}: fewer than three negative_answers that differ from the answer: {item['negative_answers']}")
        folder, started = item["video_source"], bool(item["task_progress_metadata"])
        yield {
            "id": f"seed_bench_r1-{split}-{item['sample_id']}",
            "task": "next_step",
            "answer_type": "choice",
            "data_type": "video" if started else "image",
            **({"video": f"videos/{folder}/{item['video_basename']}"} if started else {}),
            "image": f"images/{folder}/{item['current_observation_basename']}",
            "prompt": ("<video><image>" if started else "<image>") + item["question"],
            "options": lettered(choices),
            "answer": gold,
            "meta": {"split": split, "category": folder, "video_source": folder, "steps": len(item["task_progress_metadata"])},
        }


def _choices(item: Mapping[str, Any]) -> tuple[list[str], str]:
    """(choices, letter of the right one). Training records have no choices but wrong answers, of which the release draws three by chance in
    each run; here which three, and their order, follow from a hash of the record."""
    if "golden_choice_idx" in item:
        return [item[f"choice_{key}"] for key in "abcd"], str(item["golden_choice_idx"]).strip()

    def draw(of: set[str], what: str) -> list[str]:
        return sorted(of, key=lambda text: hashlib.sha256(f"{what}:{item['sample_id']}:{text}".encode()).digest())

    choices = draw({*draw({*item["negative_answers"]} - {item["answer"]}, "wrong")[:3], item["answer"]}, "order")
    return choices, letter(choices.index(item["answer"]))


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=tuple(FILES))

if __name__ == "__main__":
    main(DATASET)
