"""What is found in rows of data sets and trainers as they are, without the check behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.errors import ConfigError
from vlmrl.extras.starter.found import Found, find
from vlmrl.extras.starter.look import ANY, opened

Row = Callable[[int], dict[str, Any]]


def finds(here: Path, row: Row, *, count: int = 20, **given: Any) -> Found:
    (here / "im").mkdir(exist_ok=True)
    for i in range(count):
        Image.new("RGB", (640, 480), (i, 3, 4)).save(here / "im" / f"{i}.png")
    (here / "rows.json").write_text(json.dumps([row(i) for i in range(count)]))
    with opened(here / "rows.json") as look:
        return find(look, given, media_root=None)


def swift(**objects: Any) -> Row:
    """Boxes as ms-swift writes them."""
    talk = [{"role": "user", "content": "<image>Where is the <ref-object>?"}, {"role": "assistant", "content": "<bbox>"}]
    return lambda i: {
        "messages": talk,
        "images": [f"im/{i}.png"],
        "objects": {"ref": ["dog"], "bbox": [[10 + i, 20, 610, 470]], **objects},
    }


CASES: dict[str, tuple[Row, dict[str, Any], str]] = {
    "TRL: messages with parts": (
        lambda i: {
            "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": f"How many, {i}?"}]}],
            "image": f"im/{i}.png",
            "solution": f"<answer>{i}</answer>",
        },
        {"answer_type": "number"},
        "accuracy",
    ),
    "verl says that it is mathematics": (
        lambda i: {
            "prompt": [{"role": "user", "content": "<image>Find x."}],
            "images": [f"im/{i}.png"],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "48"},
        },
        {},
        "math",
    ),
    "ms-swift says that boxes are in pixels": (swift(bbox_type="real"), {}, "box_iou"),
    "ms-swift does not say it": (swift(), {"frame": "pixel"}, "box_iou"),
    "DocVQA: several right answers": (
        lambda i: {"question": f"What, {i}?", "answers": ["a dog", "dog"], "image": f"im/{i}.png", "questionId": i},
        {"columns": {"prompt": "question", "answer": "answers", "images": "image"}, "answer_type": "exact_text"},
        "exact",
    ),
    "ScreenSpot: corner and sides, and a name of its own for the picture": (
        lambda i: {"img_filename": f"im/{i}.png", "bbox": [30 * i, 20 * i, 41, 33], "instruction": "view the month", "data_type": "text"},
        {
            "columns": {"prompt": "instruction", "answer": "bbox", "images": "img_filename"},
            "answer_type": "bbox",
            "frame": "pixel",
            "axis": "xywh",
        },
        "box_iou",
    ),
    "Qwen's own form of a box": (
        lambda i: {"query": "Where is it?", "response": json.dumps([{"bbox_2d": [1, 2, 600, 400 + i]}]), "images": [f"im/{i}.png"]},
        {"columns": {"prompt": "query", "answer": "response", "images": "images"}, "answer_type": "bbox", "frame": "pixel"},
        "box_iou",
    ),
    "a column for each option": (
        lambda i: {"index": i, "question": f"Which, {i}?", "A": "x", "B": "y", "C": "z", "answer": "ABC"[i % 3], "image": f"im/{i}.png"},
        {
            "columns": {"prompt": "question", "answer": "answer", "images": "image", "options": ("A", "B", "C"), "id": "index"},
            "answer_type": "choice",
        },
        "choice",
    ),
    "several pictures": (
        lambda i: {"question": f"Same, {i}?", "image": [f"im/{i}.png", f"im/{(i + 1) % 20}.png"], "answer": ["yes", "no"][i % 2]},
        {"columns": {"prompt": "question", "answer": "answer", "images": "image"}, "answer_type": "exact_text"},
        "exact",
    ),
    "lengths with their unit": (
        lambda i: {"question": f"How long, {i}?", "image": f"im/{i}.png", "answer": f"{i} cm"},
        {"columns": {"prompt": "question", "answer": "answer", "images": "image"}, "answer_type": "math"},
        "math",
    ),
    "alpaca: instruction and input": (
        lambda i: {"instruction": "Say it in French.", "input": f"a dog, {i}", "output": "un chien", "image": f"im/{i}.png"},
        {"columns": {"prompt": ("instruction", "input"), "answer": "output", "images": "image"}, "answer_type": "exact_text"},
        "exact",
    ),
}


@pytest.mark.parametrize(("row", "settings", "reward"), CASES.values(), ids=list(CASES))
def test_rows_as_they_are(row: Row, settings: dict[str, Any], reward: str, tmp_path: Path):
    found = finds(tmp_path, row)
    assert found.settings == settings
    assert found.kind.rewards[0].startswith(f"{{name: {reward}}}")
    assert found.media == ["image"]
    assert found.media_dir == tmp_path
    assert ANY not in ANSWER_TYPES


def test_what_is_given_stands(tmp_path: Path):
    """Boxes of 0 to 1000 in large pictures, of which the file says nothing else."""
    found = finds(tmp_path, swift(), frame="norm1000", task="dogs")
    assert found.settings == {"frame": "norm1000", "task": "dogs"}


def test_a_given_answer_type_decides_what_the_rows_leave_open(tmp_path: Path):
    def row(i: int) -> dict[str, Any]:
        return {"question": f"Which, {i}?", "answer": "AB"[i % 2], "image": f"im/{i}.png"}

    with pytest.raises(ConfigError, match="single letters"):
        finds(tmp_path, row)
    assert finds(tmp_path, row, answer_type="exact_text").settings["answer_type"] == "exact_text"


def test_files_in_two_folders_are_a_choice(tmp_path: Path):
    for name in ("large", "small"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (28, 28)).save(tmp_path / name / "a.png")
    with pytest.raises(ConfigError, match=r"in several folders; say which: --media-root .*large or --media-root .*small"):
        finds(tmp_path, lambda i: {"question": "Q", "answer": "red", "image": "a.png"})


def test_a_fault_of_a_few_rows_does_not_hide_what_the_others_are(tmp_path: Path):
    """`check` lists them."""
    boxes = finds(tmp_path, lambda i: {"question": f"Where, {i}?", "bbox": [9, 9, 600, 470] if i else [9, 9, 5, 5], "image": f"im/{i}.png"})
    assert (boxes.settings["frame"], boxes.settings["answer_type"]) == ("pixel", "bbox")
