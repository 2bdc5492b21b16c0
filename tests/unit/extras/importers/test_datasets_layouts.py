"""Data sets that are published in two layouts: the files of the repository give the rows that the Parquet files of the Hub give.

The records are those of the samples, written as the repository writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.samples import load_dataset, parquet_bytes, unpack
from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Skipped

DATA = Path(__file__).parents[4] / "data"
Record = dict[str, Any]


def sample(path: str) -> list[Record]:
    return [json.loads(line) for line in (DATA / path).read_text(encoding="utf-8").strip().split("\n")]


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def without(record: Record, *keys: str) -> Record:
    return {key: value for key, value in record.items() if key not in keys}


def mathvision(root: Path) -> None:
    records = sample("mathvision/sample/data/test-00000-of-00001-0123456789abcdef.parquet.jsonl")
    write(root, "data/test.jsonl", "".join(json.dumps(without(record, "decoded_image")) + "\n" for record in records))


def tempcompass(root: Path) -> None:
    for form in ("multi-choice", "yes_no", "caption_matching"):
        videos: dict[str, dict[str, list[Record]]] = {}
        for record in sample(f"tempcompass/sample/{form}/test-00000-of-00001.parquet.jsonl"):
            items = videos.setdefault(record["video_id"], {}).setdefault(record["dim"], [])
            items.append({"question": record["question"], "answer": record["answer"]})
        write(root, f"questions/{form}.json", json.dumps(videos))


def ocrbench(root: Path) -> None:
    names = {"dataset": "dataset_name", "question_type": "type", "answer": "answers", "question": "question"}
    records = [
        {**{names[key]: value for key, value in record.items() if key in names}, "image_path": f"part/{number}.jpg", "id": number}
        for number, record in enumerate(sample("ocrbench/sample/data/test-00000-of-00001.parquet.jsonl"))
    ]
    for record in records:  # a single answer is a text in the repository, several are a list
        record["answers"] = record["answers"][0] if len(record["answers"]) == 1 else record["answers"]
    write(root, "OCRBench/OCRBench.json", json.dumps(records))


def charxiv(root: Path) -> None:
    names = {"reasoning_q": "query", "reasoning_a": "answer", "reasoning_a_type": "inst_category", "reasoning_q_source": "qa_source"}
    records = {
        str(number): {"figure_id": number, **{names[key]: value for key, value in record.items() if key in names}}
        for number, record in enumerate(sample("charxiv/sample/val.parquet.jsonl"))
    }
    write(root, "data/reasoning_val.json", json.dumps(records))


def chartqa(root: Path) -> None:
    for kind in ("human", "augmented"):
        records = [record for record in sample("chartqa/sample/data/test-00000-of-00001.parquet.jsonl") if record["type"] == f"{kind}_test"]
        items = [{"imgname": f"{i}.png", "query": record["question"], "label": record["answer"]} for i, record in enumerate(records)]
        write(root, f"ChartQA Dataset/test/test_{kind}.json", json.dumps(items))


def docvqa(root: Path) -> None:
    records = [record for part in (0, 1) for record in sample(f"docvqa/sample/DocVQA/validation-{part:05d}-of-00006.parquet.jsonl")]
    items = [{**record, "questionId": int(record["questionId"]), "image": f"documents/{i}.png"} for i, record in enumerate(records)]
    write(root, "val_v1.0_withQT.json", json.dumps({"dataset_name": "docvqa", "data": items}))


def mathverse(root: Path) -> None:
    records = sample("mathverse/sample/testmini.parquet.jsonl")
    items = [{**record, "image": f"images_version_1-4/{i}.png"} for i, record in enumerate(records)]
    write(root, "testmini.json", json.dumps(items))


REPOSITORY: dict[str, tuple[str, Callable[[Path], None]]] = {
    "mathvision": ("test", mathvision),
    "tempcompass": ("caption_matching", tempcompass),
    "ocrbench": ("test", ocrbench),
    "charxiv": ("val", charxiv),
    "chartqa": ("test", chartqa),
    "docvqa": ("validation", docvqa),
    "mathverse": ("testmini", mathverse),
}


def rows(name: str, root: Path, split: str) -> list[Record]:
    """Without pictures, which have other names in the two layouts; a record that is left out as its reason."""
    return [
        {"id": row.id, "prompt": row.reason}
        if isinstance(row, Skipped)
        else {**without(row, "images"), "meta": without(row["meta"], "figure")}
        for row in load_dataset(DATA / name).rows(root, split)
    ]


@pytest.mark.parametrize("name", REPOSITORY)
def test_repository_gives_the_rows_of_the_hub(name: str, tmp_path: Path) -> None:
    split, lay_out = REPOSITORY[name]
    unpack(DATA / name, tmp_path / "hub")
    lay_out(tmp_path / "repository")
    repository, hub = (rows(name, tmp_path / layout, split) for layout in ("repository", "hub"))
    if name == "chartqa":  # whose ids are numbers in the order read; the repository has the two kinds in files of their own
        repository, hub = (sorted((without(row, "id") for row in made), key=lambda row: row["prompt"]) for made in (repository, hub))
    assert repository == hub


def test_hub_gives_the_rows_of_the_repository_of_mathvista(tmp_path: Path) -> None:
    unpack(DATA / "mathvista_mini", tmp_path / "repository")
    records = json.loads((tmp_path / "repository/testmini.json").read_text(encoding="utf-8")).values()
    target = tmp_path / "hub/data/testmini-00000-of-00001.parquet"
    target.parent.mkdir(parents=True)
    target.write_bytes(parquet_bytes([{**record, "decoded_image": {"bytes": f"standin:{record['pid']}.jpg"}} for record in records]))
    hub, repository = (list(load_dataset(DATA / "mathvista_mini").rows(tmp_path / layout, "testmini")) for layout in ("hub", "repository"))
    assert [without(row, "image") for row in hub] == [without(row, "image") for row in repository]
    assert [row["image"].path for row in hub] == [row["image"] for row in repository]


def test_mathvista_does_not_take_the_notes_of_the_source_sets_for_questions(tmp_path: Path) -> None:
    """`annot_testmini.json` of the repository, as it is there."""
    write(tmp_path, "annot_testmini.json", json.dumps({"1": {"answer_latex": "1.2", "source": "fund", "problemid": "7.06"}}))
    with pytest.raises(DataError, match=r"no file testmini\.json or data/testmini-\*\.parquet"):
        list(load_dataset(DATA / "mathvista_mini").rows(tmp_path, "testmini"))


def test_charxiv_asks_by_the_type_of_the_answer_not_by_who_wrote_the_question(tmp_path: Path) -> None:
    """The Hub has both columns; they differ in most records."""
    record = sample("charxiv/sample/val.parquet.jsonl")[0]
    given = {**record, "reasoning_q": "How many?", "reasoning_a": "0.25", "reasoning_a_type": 4, "reasoning_q_source": 1}
    (tmp_path / "val.parquet").write_bytes(parquet_bytes([given]))
    (row,) = rows("charxiv", tmp_path, "val")
    assert row["prompt"] == "How many? Answer with a number with 2 decimal place(s)."
    assert row["meta"]["category"] == "number in general"


def test_mathvision_takes_bracketed_letters_for_options_in_the_picture(tmp_path: Path) -> None:
    record = {"id": "490", "question": "Which grid?\n<image1>", "options": ["(A)", "(B)", "(C)"], "image": "images/490.jpg"}
    write(tmp_path, "data/test.jsonl", json.dumps({**record, "answer": "C", "level": 1, "subject": "analytic geometry"}))
    (row,) = rows("mathvision", tmp_path, "test")
    assert (row["answer_type"], row["answer"]) == ("choice", "C")
    assert "options" not in row


@pytest.mark.parametrize(("answer", "letter"), [("C", "C"), ("(C)", "C"), ("at a rising rate", "C"), ("A\nC", None), ("at no rate", None)])
def test_mathverse_answers_are_letters_letters_in_brackets_or_texts(tmp_path: Path, answer: str, letter: str | None) -> None:
    """As they are in the release; two problems have two right options and are left out."""
    record = {
        "sample_index": "1",
        "problem_index": "517",
        "problem_version": "Text Lite",
        "question_type": "multi-choice",
        "image": "a.png",
    }
    question = "How fast?\nChoices:\nA:at a constant rate\nB:at a falling rate\nC:at a rising rate"
    write(tmp_path, "testmini.json", json.dumps([{**record, "image": "a.png", "question": question, "answer": answer}]))
    (row,) = rows("mathverse", tmp_path, "testmini")
    assert row.get("answer") == letter
    assert letter or "one right option" in row["prompt"] or "neither a letter nor one of the options" in row["prompt"]


def test_mathverse_takes_the_options_of_a_picture_from_the_version_before(tmp_path: Path) -> None:
    records = [
        {"sample_index": "1", "problem_version": "Text Lite", "question": "Is it so?\nChoices:\nA:True\nB:False"},
        {"sample_index": "2", "problem_version": "Vision Only", "question": ""},
    ]
    same = {"problem_index": "429", "question_type": "multi-choice", "answer": "False", "image": "a.png"}
    write(tmp_path, "testmini.json", json.dumps([{**record, **same} for record in records]))
    assert [row.get("answer") for row in rows("mathverse", tmp_path, "testmini")] == ["B", "B"]


def test_a_line_ends_at_a_newline_only(tmp_path: Path) -> None:
    """JSON may hold the separators U+2028 and U+0085 as they are."""
    record = {"id": "1", "question": "How\u2028many\u0085 are\x0cthere?\n<image1>", "options": [], "image": "images/1.jpg"}
    text = json.dumps({**record, "answer": "6", "level": 1, "subject": "counting"}, ensure_ascii=False)
    second = text.replace('"1"', '"2"', 1)
    write(tmp_path, "data/test.jsonl", f"{text}\r\n\r\n{second}\n")
    assert [row["id"] for row in rows("mathvision", tmp_path, "test")] == ["mathvision-test-1", "mathvision-test-2"]
