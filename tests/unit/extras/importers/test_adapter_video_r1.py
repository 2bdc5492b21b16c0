"""importers.video_r1: Video-R1, OneThinker, OpenVLThinkerV2."""

from __future__ import annotations

import json
from typing import Any

import pytest

import vlmrl.rewards.segmentation
import vlmrl.rewards.tracking  # noqa: F401 (importing registers them)
from tests.support.foreign import earns_full_reward, only_detected_by, read, refused


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
    assert (sample.task, sample.answer_type, sample.gt["boxes"]) == ("bbox", "bbox", [[100, 200, 500, 600]])
    assert sample.meta["task_type"] == "spatial_grounding"
    earns_full_reward(sample)


def test_the_problem_type_is_the_task_and_its_task_type_is_not() -> None:
    """The key that OpenVLThinkerV2's code ranks by: its `task_type` puts choices, numbers and formulas into one."""
    kinds = {"multiple choice": "A", "numerical": "<answer>3</answer>", "math": "<answer>$x$</answer>"}
    rows = [read(row(problem_type=kind, solution=gold, task_type="math_reasoning")) for kind, gold in kinds.items()]
    assert [sample.task for sample in rows] == ["choice", "number", "math"]
    picture = read(visual("segmentation", OBJECT, data_type="image", path="a.png"), frame="norm1000")
    video = read(visual("segmentation", {"time": 3, **OBJECT}), frame="norm1000", time_unit="s")
    assert (picture.task, video.task) == ("segmentation_image", "segmentation_video")


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
        ("OCR", "EXIT 12", "short_text"),
        ("free-form", "It rains.", "exact_text"),
        ("open-ended", "It rains.", "exact_text"),
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


TRACK = {"1": [405, 230, 654, 463], "2": [435, 223, 678, 446], "32": [415, 203, 691, 487]}
TUBE = {"time": [8.125, 13.483], "boxes": {"9": [317, 422, 582, 997], "10": [332, 175, 442, 369]}}
OBJECT = {
    "boxes": [100, 200, 500, 600],
    "positive_points": [[200, 300], [210, 310], [220.5, 320]],
    "negative_points": [[1, 2], [3, 4], [0, 999]],
}


def visual(kind: str, solution: object, **changes: Any) -> dict[str, Any]:
    text = solution if isinstance(solution, str) else json.dumps(solution)
    return row(problem_type=kind, options=[], solution=f"<answer>{text}</answer>", **changes)


def test_tracking_of_onethinker() -> None:
    sample = read(visual("tracking", {"boxes": TRACK}), frame="norm1000")
    assert (sample.answer_type, sample.gt, sample.meta["frame"]) == ("tracking", {"track": TRACK}, "norm1000")
    assert json.loads(sample.answer) == {"boxes": TRACK}
    earns_full_reward(sample, "tracking")
    scaled = read(visual("tracking", {"boxes": {"1": [0.1, 0.2, 0.5, 0.6]}}), frame="norm1")
    assert scaled.gt["track"] == {"1": [100, 200, 500, 600]}


@pytest.mark.parametrize("name", ["spatial-temporal grounding", "Spatial Temporal Grounding"])
def test_tubes_of_onethinker(name: str) -> None:
    sample = read(visual(name, TUBE), frame="norm1000", time_unit="s")
    # seconds keep two decimals: 8.125 is 8.12 in binary floating point
    assert (sample.answer_type, sample.gt) == ("spatio_temporal", {"tube": {"time": [8.12, 13.48], "boxes": TUBE["boxes"]}})
    assert json.loads(sample.answer) == sample.gt["tube"]
    earns_full_reward(sample, "spatio_temporal")


def test_segmentation_of_onethinker() -> None:
    picture = read(visual("segmentation", OBJECT, data_type="image", path="a.png"), frame="norm1000")
    assert (picture.answer_type, picture.gt) == ("segmentation", {"segmentation": OBJECT})
    earns_full_reward(picture, "segmentation_points")
    video = read(visual("segmentation", {"time": 3, **OBJECT}), frame="norm1000", time_unit="s")
    assert video.gt == {"segmentation": {"time": 3, **OBJECT}}
    assert json.loads(video.answer) == {"time": 3, **OBJECT}
    earns_full_reward(video, "segmentation_points")
    nulls = read(visual("segmentation", {"time": None, **OBJECT}, data_type="image", path="a.png"), frame="norm1000")
    assert nulls.gt == picture.gt


def test_long_tracks_are_read_back() -> None:
    track = {str(second): [100.25, 200.5, 500.75, 600.25] for second in range(1, 257)}
    earns_full_reward(read(visual("tracking", {"boxes": track}), frame="norm1000"), "tracking")
    refused(visual("tracking", {"boxes": track | {"257": [1, 2, 3, 4]}}), "bad_value", "257 frames", frame="norm1000")


@pytest.mark.parametrize(
    ("kind", "solution", "changes", "reason", "match"),
    [
        ("tracking", "left", {}, "answer", "not JSON"),
        ("tracking", [[1, 2, 3, 4]], {}, "answer", "not a JSON object"),
        ("tracking", {"boxes": [1, 2, 3, 4]}, {}, "answer", "an object of frames"),
        ("tracking", {"boxes": {}}, {}, "answer", "an object of frames"),
        ("tracking", {"boxes": {"1": [1, 2, 3]}}, {}, "answer", r"boxes\.1: a box is"),
        ("tracking", {"boxes": {"1": None}}, {}, "answer", r"boxes\.1: a box is"),
        ("tracking", {"boxes": {"first": [1, 2, 3, 4]}}, {}, "bad_value", "a frame is a number"),
        ("tracking", {"boxes": {"1": [1, 2, 3, 4], "01": [1, 2, 3, 4]}}, {}, "bad_value", "names a frame twice"),
        ("tracking", {"boxes": {"1": [1, 2, 3, 1004]}}, {}, "frame", "outside of the frame"),
        ("tracking", {"boxes": {"1": [3, 2, 1, 4]}}, {}, "bad_value", "no area"),
        ("tracking", {"boxes": TRACK, "time": [1, 2]}, {}, "answer", "the key 'time'"),
        ("tracking", {"track": TRACK}, {}, "answer", "the key 'track'"),
        ("tracking", {"boxes": TRACK}, {"data_type": "image", "path": "a.png"}, "answer", "1 image"),
        ("spatial-temporal grounding", {"boxes": TRACK}, {}, "missing_key", "no 'time'"),
        ("spatial-temporal grounding", {"time": [1, 2]}, {}, "missing_key", "no 'boxes'"),
        ("spatial-temporal grounding", {**TUBE, "time": [5, 2]}, {}, "bad_value", "the end is not after"),
        ("segmentation", OBJECT, {}, "missing_key", "no 'time'"),
        ("segmentation", {"time": 3, **OBJECT}, {"data_type": "image", "path": "a.png"}, "answer", "shows a picture"),
        ("segmentation", OBJECT, {"data_type": "image", "path": ["a.png", "b.png"]}, "answer", "2 image"),
        ("segmentation", {"time": 3, **OBJECT, "boxes": {"1": [1, 2, 3, 4]}}, {}, "answer", "a box is"),
        ("segmentation", {"time": 3, **OBJECT, "positive_points": [[1, 2, 3]]}, {}, "answer", r"positive_points\[0\]: a point is"),
        ("segmentation", {"time": 3, **OBJECT, "positive_points": {}}, {}, "answer", "a list of points"),
        ("segmentation", {"time": 3, **OBJECT, "positive_points": []}, {}, "bad_value", "0 positive"),
        ("segmentation", {"time": [1, 2], **OBJECT}, {}, "bad_type", "a time must be a number"),
    ],
)
def test_other_forms_of_visual_answers_are_refused(kind: str, solution: object, changes: dict[str, Any], reason: str, match: str) -> None:
    refused(visual(kind, solution, **changes), reason, match, frame="norm1000", time_unit="s")


def test_visual_answers_need_a_declared_frame_and_unit() -> None:
    refused(visual("tracking", {"boxes": TRACK}), "frame", "set 'frame'")
    refused(visual("tracking", {"boxes": TRACK}), "frame", "exactly one picture", frame="pixel")
    refused(visual("spatial-temporal grounding", TUBE), "time_unit", "set 'time_unit'", frame="norm1000")
    refused(visual("segmentation", {"time": 3, **OBJECT}), "time_unit", "set 'time_unit'", frame="norm1000")


@pytest.mark.parametrize(
    ("changes", "reason", "match"),
    [
        ({"problem_type": "riddle"}, "problem_type", "known: free form, math, multiple choice"),
        ({"solution": None}, "missing_key", "'solution'"),
        ({"data_type": "hologram"}, "bad_value", "known: image, multi_image, video, text"),
        ({"data_type": None}, "bad_value", "'data_type'"),
        ({"data_type": "text"}, "bad_value", "has a 'path'"),
        ({"images": ["a.png"]}, "bad_value", "both given"),
        ({"problem": "<image><image>Q"}, "placeholder", "2 <image>"),
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
