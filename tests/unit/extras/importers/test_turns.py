"""importers.turns: rows with several turns, with their media and boxes, and ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.foreign import earns_full_reward, read, refused
from vlmrl.data.adapters import Importer, ImportOptions
from vlmrl.data.row import parse_row
from vlmrl.errors import RowError
from vlmrl.types import Sample


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


ROW: dict[str, Any] = {
    "id": "a",
    "messages": [
        {"role": "system", "content": "Be brief."},
        *chat("<image>Who?", "A man", "Why?<image><video>", "He fell", "When?", "Today"),
    ],
    "images": ["1.png", "2.png"],
    "videos": ["v.mp4"],
}


def rows(row: dict[str, Any], turns: str, **options: Any) -> list[Sample]:
    importer = Importer(ImportOptions(turns=turns, **{"answer_type": "exact_text", **options}))
    return [parse_row(one, source="f:1", media_root=".") for one in importer.rows(row, where="f:1", place=1)]


def shown(sample: Sample) -> tuple[str, str, str, list[str]]:
    return sample.id, sample.asked, sample.answer, [ref.path for ref in sample.media]


WHOLE = "Who?\n-> A man\nWhy?\n-> He fell\nWhen?"


def test_media_go_with_the_turn_of_their_placeholders() -> None:
    assert [shown(one) for one in rows(ROW, "first")] == [("a", "Who?", "A man", ["1.png"])]
    assert [shown(one) for one in rows(ROW, "last")] == [("a", WHOLE, "Today", ["1.png", "2.png", "v.mp4"])]
    assert [shown(one) for one in rows(ROW, "split")] == [
        ("a#turn1", "Who?", "A man", ["1.png"]),
        ("a#turn2", "Who?\n-> A man\nWhy?", "He fell", ["1.png", "2.png", "v.mp4"]),
        ("a#turn3", WHOLE, "Today", ["1.png", "2.png", "v.mp4"]),
    ]
    last = rows(ROW, "last")[0]
    assert [(turn.media, turn.question_first) for turn in last.history] == [(1, False), (2, True)]
    assert last.meta["system"] == "Be brief."
    earns_full_reward(last)


def test_media_without_placeholders_stay_with_the_first_turn() -> None:
    row = {"messages": chat("Who?", "A man", "Why?", "He fell"), "images": ["1.png"]}
    assert [shown(one)[1:] for one in rows(row, "split")] == [
        ("Who?", "A man", ["1.png"]),
        ("Who?\n-> A man\nWhy?", "He fell", ["1.png"]),
    ]
    assert [turn.media for turn in rows(row, "last")[0].history] == [1]


def test_media_inside_the_messages_need_no_counting() -> None:
    parts: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "image", "image": "1.png"}, {"type": "text", "text": "Who?"}]},
        *chat("", "A man")[1:],
        {"role": "user", "content": [{"type": "text", "text": "And here?"}, {"type": "image_url", "image_url": {"url": "2.png"}}]},
        {"role": "assistant", "content": "Nobody"},
    ]
    assert [shown(one)[3] for one in rows({"messages": parts}, "split")] == [["1.png"], ["1.png", "2.png"]]


def test_counts_that_disagree_are_refused_and_not_guessed() -> None:
    with pytest.raises(RowError, match=r"placeholder: the messages have 2 <image> but 'images' has 3"):
        rows({**ROW, "images": ["1.png", "2.png", "3.png"]}, "first")
    with pytest.raises(RowError, match="numbered placeholders"):
        rows({"messages": chat("<image 1>Who?", "A", "Why?", "B"), "images": ["1.png"]}, "last")


def test_the_gold_answer_in_a_column_is_that_of_the_last_question() -> None:
    row = {"prompt": chat("Who?", "A man", "Why?"), "answer": "He fell"}
    assert shown(rows(row, "last")[0])[1:3] == ("Who?\n-> A man\nWhy?", "He fell")
    for turns in ("first", "split"):
        with pytest.raises(RowError, match=f"'answer' is the gold answer of the last question only; set 'turns: last', not '{turns}'"):
            rows(row, turns)
    refused(row, "turns", r"'prompt\[2\]' is a second question", answer_type="exact_text")


def test_boxes_go_with_their_turns(tmp_path: Path) -> None:
    Image.new("RGB", (100, 100)).save(tmp_path / "a.png")
    talk = chat("<image>Where is the <ref-object>?", "<bbox>", "And the <ref-object> beside <bbox>?", "<bbox>")
    boxes = [[0, 0, 10, 10], [0, 0, 10, 10], [20, 20, 50, 50]]
    row = {"messages": talk, "images": ["a.png"], "objects": {"ref": ["dog", "cat"], "bbox": boxes, "bbox_type": "real"}}
    first, last = rows(row, "split", media_dir=tmp_path)
    assert (first.question, first.gt["boxes"]) == ("Where is the dog?", [[0, 0, 100, 100]])
    assert (last.question, last.gt["boxes"]) == ("And the cat beside [0, 0, 100, 100]?", [[200, 200, 500, 500]])
    assert last.history[0].answer == "[0, 0, 100, 100]"


def test_one_question_is_read_alike_and_other_shapes_are_left_alone() -> None:
    one = {"id": "x", "messages": chat("Who?", "A man")}
    for turns in ("first", "last", "split"):
        assert [shown(sample)[0] for sample in rows(one, turns)] == ["x"]
        assert len(rows({"problem": "Q", "answer": "A"}, turns)) == 1


def test_ids_of_turns_can_be_ids() -> None:
    made = [sample.id for sample in rows({**ROW, "id": "x" * 255}, "split")]
    assert len(set(made)) == 3
    assert all(len(name) <= 256 and name.startswith("x" * 200) for name in made)
    unnamed = [sample.id for sample in rows({key: value for key, value in ROW.items() if key != "id"}, "split")]
    assert len({name.partition("#")[0] for name in unnamed}) == 1


def test_turns_out_of_order_are_refused() -> None:
    refused(
        {"messages": chat("Who?", "A", "Why?", "B") + chat("", "C")[1:]},
        "turns",
        "after 'assistant'",
        turns="last",
        answer_type="exact_text",
    )
    assert read({"messages": chat("Who?", "A")}, turns="last", answer_type="exact_text").history == ()
