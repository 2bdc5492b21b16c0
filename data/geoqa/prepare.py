"""GeoQA in the three forms in which it is used: R1-V's training set, its 754 test prompts, and the original release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet

from vlmrl.prepare.prepare import Dataset, Embedded, Row, Skipped, letter, lettered, main, official, read_json, read_jsonl

_SOLUTION = re.compile(r"\s*<answer>\s*(.*?)\s*</answer>\s*", re.DOTALL)


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
    number = 0
    for path in sorted(official(root, "GEOQA_R1V_Train_8K/data").glob("train-*.parquet")):
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
            for item in batch.to_pylist():
                name, number = f"geoqa-train-{number:05d}", number + 1
                answer = _SOLUTION.fullmatch(item["solution"])
                if answer is None or not answer[1]:
                    yield Skipped(name, "solution is not one answer block")
                    continue
                image = Embedded(f"train/{name}.png", item["image"]["bytes"])
                yield {**_row(name, item["problem"], "train"), "image": image, "answer_type": "math", "answer": answer[1]}


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
