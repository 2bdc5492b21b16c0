"""data.adapters.video_r1: Video-R1, OneThinker, OpenVLThinkerV2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.foreign import earns_full_reward, only_detected_by, read, refused
from vlmrl.data.adapters.video_r1 import PROBLEM_TYPES


def row(**changes: Any) -> dict[str, Any]:
    out = {
        "problem_id": 2,
        "problem": "What happens after the door opens?",
        "data_type": "video",
        "problem_type": "multiple choice",
        "options": ["A. Rain", "B. Snow"],
        "path": "./LLaVA-Video-178K/a.mp4",
        "solution": "<answer>A</answer>",
        "data_source": "LLaVA-Video-178K",
        **changes,
    }
    return {key: value for key, value in out.items() if value is not None}


def test_a_row_of_video_r1() -> None:
    sample = read(row())
    assert (sample.id, sample.answer_type, sample.task, sample.answer) == ("2", "choice", "choice", "A")
    assert sample.question == "What happens after the door opens?\nA. Rain\nB. Snow"
    assert [(ref.kind, ref.path) for ref in sample.media] == [("video", "LLaVA-Video-178K/a.mp4")]
    assert (sample.meta["source"], sample.meta["data_type"]) == ("LLaVA-Video-178K", "video")
    earns_full_reward(sample)


def test_a_row_of_openvlthinker() -> None:
    sample = read(
        {
            "problem_id": "r7",
            "problem": "<image>Where is the cup?",
            "data_type": "image",
            "problem_type": "spatial grounding",
            "task_type": "spatial_grounding",
            "images": ["a.png"],
            "answer": '<answer>{"boxes": [100, 200, 500, 600]}</answer>',
            "problem_reserved_text": "",
        },
        frame="norm1000",
    )
    assert (sample.task, sample.answer_type, sample.gt["boxes"]) == ("spatial_grounding", "bbox", [[100, 200, 500, 600]])
    earns_full_reward(sample)


@pytest.mark.parametrize("time", ['{"time": [12.3, 15]}', "[12.3, 15.0]", "12.3 to 15.0", "12.3 s - 15 seconds", "0:12.3 - 0:15"])
def test_temporal_grounding_of_onethinker(time: str) -> None:
    asked = row(problem_type="temporal grounding", options=[], solution=f"<answer>{time}</answer>")
    sample = read(asked, time_unit="s")
    assert (sample.gt["time"], sample.answer) == ([12.3, 15.0], "12.30 to 15.00")
    earns_full_reward(sample)


def test_times_without_a_unit_are_refused() -> None:
    refused(row(problem_type="temporal grounding", options=[], solution='{"time": [12.3, 15]}'), "time_unit", "set 'time_unit'")
    counted = row(problem_type="temporal grounding", options=[], solution=[369, 450])
    assert read(counted, time_unit="frames", time_fps=30.0).gt["time"] == [12.3, 15.0]


@pytest.mark.parametrize(
    ("name", "answer", "kind"),
    [
        ("numerical", "1,234.5", "number"),
        ("regression", "2.75", "regression"),
        ("OCR", "EXIT 12", "ocr"),
        ("free-form", "It rains.", "open"),
        ("open-ended", "It rains.", "open"),
        ("Math", "\\frac{1}{2}", "math"),
        ("multiple_choice", "B", "choice"),
    ],
)
def test_problem_types(name: str, answer: str, kind: str) -> None:
    sample = read(row(problem_type=name, options=None if kind != "choice" else ["A. x", "B. y"], solution=f"<answer>{answer}</answer>"))
    assert (sample.answer_type, sample.answer) == (kind, answer)
    earns_full_reward(sample)


def test_media_kinds() -> None:
    image = read(row(data_type="image", path="a.png"))
    assert ([(r.kind, r.path) for r in image.media], image.meta["data_type"]) == ([("image", "a.png")], "image")
    several = read(row(data_type="image", path=["a.png", "b.png"]))
    assert ([r.path for r in several.media], several.meta["data_type"]) == (["a.png", "b.png"], "multi_image")
    assert read(row(data_type="text", path=None)).media == ()


def test_process_is_the_thought() -> None:
    assert read(row(process="<think>The sky is dark.</think>")).thought == "The sky is dark."
    assert read(row(process="<think>Dark.</think><answer>A</answer>")).thought == "Dark."
    assert read(row(process="Dark.")).thought == "Dark."


def test_it_is_known_by_its_keys() -> None:
    only_detected_by("video_r1", row(), row(problem_type=None), {"problem": "Q", "problem_type": "math", "answer": "1", "images": []})


@pytest.mark.parametrize("name", [name for name, kind in PROBLEM_TYPES.items() if kind is None])
def test_problem_types_without_an_answer_type(name: str) -> None:
    refused(row(problem_type=name), "problem_type", "no answer type; known: free form, math")


@pytest.mark.parametrize(
    ("changes", "reason", "match"),
    [
        ({"problem_type": "riddle"}, "problem_type", "known: free form, math, multiple choice"),
        ({"solution": None}, "missing_key", "'solution'"),
        ({"data_type": "hologram"}, "bad_value", "known: image, multi_image, video, text"),
        ({"data_type": None}, "bad_value", "'data_type'"),
        ({"data_type": "text"}, "bad_value", "has a 'path'"),
        ({"images": ["a.png"]}, "bad_value", "both given"),
        ({"problem": "<image>Q"}, "placeholder", "1 <image>"),
        ({"solution": "<answer>C</answer>"}, "answer", "one of the options A, B"),
        ({"problem_type": "numerical", "options": None, "solution": "3 m"}, "answer", "not one number"),
        ({"problem_type": "spatial grounding", "options": None, "solution": "left"}, "answer", "not JSON"),
        ({"problem_type": "spatial grounding", "options": None, "solution": '{"boxes": []}'}, "answer", "no list"),
        ({"problem_type": "spatial grounding", "options": None, "solution": "[[1, 2], [3, 4]]"}, "answer", "four numbers"),
        ({"problem_type": "temporal grounding", "options": None, "solution": "later"}, "answer", "not a time span"),
        ({"problem_type": "temporal grounding", "options": None, "solution": '{"at": 1}'}, "missing_key", "'time'"),
    ],
)
def test_refused(changes: dict[str, Any], reason: str, match: str) -> None:
    refused(row(**changes), reason, match, adapter="video_r1", frame="norm1000", time_unit="s")
