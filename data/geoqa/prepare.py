"""GeoQA in the three forms in which it is used: R1-V's training set, its 754 test prompts, and the original release."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmrl.extras.importers.prepare.hf_rows import Record, answer_block, made, picture, records
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, letter, lettered, main, official, read_json, read_jsonl


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """`train` and `test` are open questions with a symbolic answer; `geoqa3` is multiple choice in Chinese."""
    if split == "train":
        yield from _train(root)
    elif split == "test":
        for number, item in read_jsonl(official(root, "geoqa_test_prompts.jsonl")):
            row = _row(f"geoqa-test-{number:03d}", item["question"], split)
            yield {**row, "image": item["image_path"].removeprefix("./"), "answer_type": "math", "answer": str(item["ground_truth"])}
    else:
        yield from _original(root)


def _train(root: Path) -> Iterator[Row | Skipped]:
    for number, item in enumerate(records(root, "GEOQA_R1V_Train_8K/data/train-*.parquet")):
        name = f"geoqa-train-{number:05d}"
        yield made(name, partial(_train_row, name, item))


def _train_row(name: str, item: Record) -> Row:
    image = picture(item["image"], f"train/{name}")
    return {**_row(name, item["problem"], "train"), "image": image, "answer_type": "math", "answer": answer_block(item["solution"])}


def _original(root: Path) -> Iterator[Row | Skipped]:
    for path in sorted(official(root, "GeoQA3/json").glob("*.json"), key=lambda path: int(path.stem)):
        item = read_json(path)
        options, answer = lettered(item["choices"]), letter(int(item["label"]))
        row = _row(f"geoqa-geoqa3-{path.stem}", item["subject"], "geoqa3")
        yield {**row, "image": f"GeoQA3/image/{path.stem}.png", "answer_type": "choice", "options": options, "answer": answer}


def _row(name: str, question: str, split: str) -> Row:
    return {"id": name, "task": "geometry", "data_type": "image", "prompt": question, "meta": {"split": split}}


DATASET = Dataset(folder=Path(__file__).parent, rows=rows, splits=("train", "test", "geoqa3"))

if __name__ == "__main__":
    main(DATASET)
