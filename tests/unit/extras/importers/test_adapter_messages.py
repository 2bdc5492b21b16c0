"""importers.messages: ms-swift, LLaMA-Factory and ShareGPT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.foreign import earns_full_reward, only_detected_by, read, refused

ASK = {"role": "user", "content": "<image>Where is the <ref-object>?"}
TELL = {"role": "assistant", "content": "<bbox>"}
OBJECTS = {"ref": ["dog"], "bbox": [[10, 20, 110, 220]], "bbox_type": "real"}


def row(**changes: Any) -> dict[str, Any]:
    out = {"messages": [ASK, TELL], "images": ["a.png"], "objects": OBJECTS, **changes}
    return {key: value for key, value in out.items() if value is not None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (400, 300)).save(tmp_path / "a.png")
    return tmp_path


def test_boxes_of_ms_swift(folder: Path) -> None:
    sample = read(row(), media_dir=folder)
    assert (sample.answer_type, sample.question) == ("bbox", "Where is the dog?")
    assert sample.gt["boxes"] == [[25, 66.67, 275, 733.33]]
    earns_full_reward(sample)
    norm = read(row(objects={**OBJECTS, "bbox": [[0.1, 0.2, 0.5, 0.6]], "bbox_type": "norm1"}))
    assert norm.gt["boxes"] == [[100, 200, 500, 600]]
    earns_full_reward(norm)


def test_boxes_in_the_question_are_written_out(folder: Path) -> None:
    asked = [{"role": "user", "content": "<image>What is at <bbox>?"}, {"role": "assistant", "content": "A <ref-object>"}]
    sample = read(row(messages=asked), answer_type="exact_text", media_dir=folder)
    assert (sample.question, sample.answer) == ("What is at [25, 66.67, 275, 733.33]?", "A dog")
    earns_full_reward(sample)


def test_points_and_several_boxes(folder: Path) -> None:
    point = read(row(objects={**OBJECTS, "bbox": [[200, 150]]}), media_dir=folder)
    assert (point.answer_type, point.answer, point.gt["points"]) == ("point", "[500, 500]", [[500, 500]])
    two = {"role": "assistant", "content": "<bbox> and <bbox>"}
    sample = read(row(messages=[ASK, two], objects={**OBJECTS, "bbox": [[0, 0, 40, 30], [40, 30, 80, 60]]}), media_dir=folder)
    assert sample.gt["boxes"] == [[0, 0, 100, 100], [100, 100, 200, 200]]
    earns_full_reward(sample)


def test_a_thought_before_boxes_is_kept_and_its_own_boxes_are_no_answer(folder: Path) -> None:
    told = {"role": "assistant", "content": "<think>The <ref-object> is near <bbox>.</think><bbox>"}
    asked = {"role": "user", "content": "<image>Where is it?"}
    objects = {**OBJECTS, "bbox": [[0, 0, 40, 30], [40, 30, 80, 60]]}
    sample = read(row(messages=[asked, told], objects=objects), media_dir=folder)
    assert sample.gt["boxes"] == [[100, 100, 200, 200]]
    assert sample.thought == "The dog is near [0, 0, 100, 100]."
    earns_full_reward(sample)


def test_the_size_that_a_row_states_must_be_that_of_the_file(folder: Path) -> None:
    fits = {**OBJECTS, "width": [400], "height": [300]}
    assert read(row(objects=fits), media_dir=folder).gt["boxes"] == [[25, 66.67, 275, 733.33]]
    assert read(row(objects=fits)).gt["boxes"] == [[25, 66.67, 275, 733.33]]  # without the file, what the row says
    refused(row(objects={**OBJECTS, "width": [300], "height": [400]}), "size", "another version", media_dir=folder)


def test_conversations() -> None:
    talk = [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "<video>What?"}, {"from": "gpt", "value": "Rain"}]
    sample = read({"conversations": talk, "videos": ["v.mp4"]}, answer_type="exact_text")
    assert (sample.question, sample.answer, sample.meta["system"]) == ("What?", "Rain", "Be brief.")
    earns_full_reward(sample)
    thinking = {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>t</think><answer>B</answer>"}]}
    assert (read(thinking, answer_type="choice").answer, read(thinking, answer_type="choice").thought) == ("B", "t")


def test_the_solution_column_comes_first() -> None:
    asked = {"messages": [{"role": "user", "content": "<image>How many?"}], "images": ["a.png"], "solution": "<answer>3</answer>"}
    sample = read(asked, answer_type="number")
    assert sample.answer == "3"
    earns_full_reward(sample)
    assert read({**asked, "messages": [*asked["messages"], {"role": "assistant", "content": "four"}]}, answer_type="number").answer == "3"


def test_it_is_known_by_its_keys() -> None:
    only_detected_by("messages", row(), {"conversations": []}, {"messages": [], "images": [], "solution": "x"})


@pytest.mark.parametrize(
    ("changes", "reason", "match"),
    [
        ({"messages": [ASK, TELL, ASK, TELL]}, "turns", r"messages\[2\]"),
        ({"messages": [TELL, ASK]}, "turns", r"messages\[0\]"),
        ({"messages": [ASK], "objects": {**OBJECTS, "bbox": []}}, "missing_key", "no gold answer"),
        ({"messages": [{"role": "user"}]}, "missing_key", r"messages\[0\]\.content"),
        ({"messages": ["hi"]}, "bad_type", r"messages\[0\]"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}, "turns", "tools"),
        ({"conversations": []}, "bad_value", "'messages' or 'conversations'"),
        ({"tools": "[]"}, "unknown_key", "'tools'"),
        ({"objects": None}, "missing_key", "no 'objects'"),
        ({"objects": {**OBJECTS, "bbox_type": None}}, "frame", "nothing says"),
        ({"objects": {**OBJECTS, "bbox_type": "cm"}}, "objects", "known: real"),
        ({"objects": {**OBJECTS, "bbox": OBJECTS["bbox"] * 2}}, "objects", "1 <bbox>"),
        ({"objects": {**OBJECTS, "ref": []}}, "objects", "1 <ref-object>"),
        ({"objects": {**OBJECTS, "ref": [7]}}, "bad_type", r"objects\.ref"),
        ({"objects": {**OBJECTS, "image_id": [1]}}, "objects", "image_id"),
        ({"objects": {**OBJECTS, "labels": [1]}}, "unknown_key", r"objects\.labels"),
        ({"objects": []}, "bad_type", "'objects'"),
    ],
)
def test_refused(changes: dict[str, Any], reason: str, match: str, folder: Path) -> None:
    refused(row(**changes), reason, match, adapter="messages", media_dir=folder)


def test_row_and_source_may_not_disagree_on_the_frame(folder: Path) -> None:
    refused(row(), "frame", "the row says 'pixel'", frame="norm1", media_dir=folder)
