"""importers.columns: rows of no known shape, by a mapping of their columns; and what is said without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.foreign import earns_full_reward, read, refused
from vlmrl.config.section import SourceSection, column_problem
from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.data.row import parse_row
from vlmrl.data.source import read_source
from vlmrl.errors import DataError

QA = {"question": "What is it?", "reply": "A dog", "shots": {"front": "a.png", "back": "b.png"}, "uid": 7, "split": "train"}


def mapped(row: dict[str, Any], columns: dict[str, Any], **options: Any) -> Any:
    return read(row, columns=columns, **{"answer_type": "exact_text", **options})


def test_our_keys_take_the_columns_that_they_are_given() -> None:
    columns = {"question": "question", "answer": "reply", "images": ("shots.front", "shots.back"), "id": "uid", "meta.part": "split"}
    sample = mapped(QA, columns)
    assert (sample.id, sample.question, sample.answer) == ("7", "What is it?", "A dog")
    assert [ref.path for ref in sample.media] == ["a.png", "b.png"]
    assert dict(sample.meta) == {"part": "train"}
    earns_full_reward(sample)


def test_what_is_not_mapped_is_kept_in_meta() -> None:
    sample = mapped(QA, {"prompt": "question", "answer": "reply"})
    assert dict(sample.meta) == {"shots": QA["shots"], "uid": 7, "split": "train"}
    assert sample.id.endswith("-1")


def test_texts_of_several_columns_stand_on_lines_of_their_own() -> None:
    row = {"instruction": " Read it. ", "input": "", "output": "x", "n": 3}
    assert mapped(row, {"prompt": ("instruction", "input", "n"), "answer": "output"}).question == "Read it.\n3"
    refused({**row, "input": {"a": 1}}, "bad_type", "instruction, input", columns={"prompt": ("instruction", "input"), "answer": "output"})


@pytest.mark.parametrize("options", [["cat", "dog"], {"A": "cat", "B": "dog"}, '["cat", "dog"]'])
def test_options_of_one_column(options: object) -> None:
    sample = mapped({"q": "Which?", "a": "dog", "o": options}, {"prompt": "q", "answer": "a", "options": "o"}, answer_type=None)
    assert (sample.answer_type, sample.answer, sample.question) == ("choice", "B", "Which?\nA. cat\nB. dog")


def test_a_value_for_every_row_and_a_place_in_a_list() -> None:
    row = {"file": "v.mp4", "captions": [{"content": "It rains."}, {"content": "It snows."}]}
    sample = mapped(row, {"prompt": "=Describe it.", "answer": "captions.1.content", "videos": "file", "task": "=caption"})
    assert (sample.question, sample.answer, sample.task) == ("Describe it.", "It snows.", "caption")


def test_messages_under_another_name() -> None:
    talk = json.dumps([{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "Rain"}])
    sample = mapped({"dialog": talk, "pic": "a.png"}, {"messages": "dialog", "images": "pic"})
    assert (sample.question, sample.answer, [ref.path for ref in sample.media]) == ("What?", "Rain", ["a.png"])
    both = {"messages": "dialog", "answer": "gold"}
    refused({"dialog": talk, "gold": "Rain"}, "turns", "gold", columns=both, answer_type="exact_text")


def test_rows_that_lack_what_is_needed_name_column_and_key() -> None:
    refused({"reply": "A dog"}, "missing_key", r"'question' \(mapped to 'prompt'\)", columns={"prompt": "question", "answer": "reply"})
    refused({"question": "Q"}, "missing_key", "gold answer", columns={"prompt": "question", "answer": "reply"}, answer_type="exact_text")


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"promt": "q"}, r"'promt' is no key .*did you mean 'prompt'\?.*known: prompt, question, .*meta\.<name>"),
    ({"prompt": "q", "meta.": "x"}, r"'meta\.' is no key"),
    ({"prompt": "q", "question": "q2"}, "'prompt' and 'question' mean the same"),
    ({"prompt": "q", "image": "a", "images": "b"}, "'image' and 'images' mean the same"),
    ({"prompt": "q", "answer": ("a", "b")}, r"'answer' is given 2 columns \(a, b\); it takes one"),
    ({"prompt": "q", "id": ()}, "'id' names no column"),
    ({"answer": "a"}, r"no column is mapped to 'prompt' or 'messages' \(mapped: answer\)"),
]


@pytest.mark.parametrize(("columns", "told"), PROBLEMS)
def test_a_mapping_that_means_nothing_is_refused_by_recipe_and_by_reader(columns: dict[str, Any], told: str) -> None:
    assert column_problem(columns) is not None
    with pytest.raises(ValidationError, match=told):
        SourceSection(path="x", columns=columns)
    with pytest.raises(DataError, match=told):
        Importer(ImportOptions(columns=columns))


def test_adapter_and_columns_exclude_each_other_and_sources_with_columns_are_keys() -> None:
    with pytest.raises(ValidationError, match="adapter and columns"):
        SourceSection(path="x", adapter="trl", columns={"prompt": "q"})
    one, same, other = (SourceSection(path="x", columns={"prompt": name}) for name in ("q", "q", "p"))
    assert {one: 1}[same] == 1
    assert other not in {one: 1}


def test_a_column_that_no_row_has_stops_the_source(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"q": f"Why {i}?", "a": "x", **({"pic": "a.png"} if i == 2 else {})}) + "\n" for i in range(3)))
    options = ImportOptions(answer_type="exact_text", columns={"prompt": "q", "answer": "a", "images": "pic"})
    assert [len(sample.media) for sample in read_source(path, media_root=".", options=options).samples] == [0, 0, 1]
    wrong = ImportOptions(answer_type="exact_text", columns={"prompt": "q", "answer": "a", "images": "pics"})
    with pytest.raises(DataError, match=r"no row has the column 'pics' \(mapped to 'images'\); did you mean 'pic'\?; they have q, a, pic"):
        read_source(path, media_root=".", options=wrong)


@pytest.mark.parametrize(
    ("row", "like"),
    [
        ({"question": "Q", "answer": "A", "image_path": "a.png"}, "columns: {prompt: question, answer: answer, images: image_path}"),
        ({"instruction": "I", "input": "x", "output": "A"}, r"columns: {prompt: \[instruction, input\], answer: output}"),
        ({"index": 1, "question": "Q", "A": "x", "B": "y", "answer": "A"}, r"answer: answer, options: \[A, B\], id: index}"),
        ({"pixels": [1, 2]}, r"columns: {prompt: \?, answer: \?}"),
    ],
)
def test_rows_of_no_known_shape_get_a_mapping_to_start_from(row: dict[str, Any], like: str) -> None:
    refused(row, "unknown_shape", like)
    refused(row, "unknown_shape", "known are vlmrl, tasks, trl, verl")


def test_a_row_of_ours_that_lacks_something_is_told_so() -> None:
    refused({"id": "a", "task": "t", "prompt": "Q", "answer": "A"}, "missing_key", "'answer_type'")


def test_kinds_that_are_not_trained_on_say_what_to_do() -> None:
    refused({"prompt": "Q", "chosen": "A", "rejected": "B"}, "preference", "{prompt: prompt, answer: chosen}")
    refused({"messages": [], "audio": "a.wav"}, "sound", "'audio'")
    assert mapped({"prompt": "Q", "chosen": "A", "rejected": "B"}, {"prompt": "prompt", "answer": "chosen"}).answer == "A"
    refused({"messages": [], "label": False}, "preference", "'label'")


def test_turns_of_messages_under_another_name() -> None:
    talk = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(("Who?", "A man", "Why?", "He fell"))]
    columns = {"messages": "dialog", "images": "pics"}
    for dialog in (talk, json.dumps(talk)):
        row = {"dialog": dialog, "pics": ["a.png"]}
        importer = Importer(ImportOptions(columns=columns, turns="split", answer_type="exact_text"))
        first, last = (parse_row(one, source="f:1", media_root=".") for one in importer.rows(row, where="f:1", place=1))
        assert (first.asked, first.answer, last.asked, last.answer) == ("Who?", "A man", "Who?\n-> A man\nWhy?", "He fell")
        refused(row, "turns", "a second question", columns=columns, answer_type="exact_text")
    with pytest.raises(DataError, match=r"'turns: split' cuts messages in a column of their own, not at 'extra\.dialog'"):
        Importer(ImportOptions(columns={"messages": "extra.dialog"}, turns="split"))
