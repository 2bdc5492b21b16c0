"""importers.verl."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.foreign import earns_full_reward, only_detected_by, read, refused


def row(**changes: Any) -> dict[str, Any]:
    out = {
        "data_source": "hiyouga/geometry3k",
        "prompt": [
            {
                "role": "user",
                "content": "<image>Find x. You FIRST think about the reasoning process as an internal monologue and then provide the "
                "final answer. The reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in "
                "\\boxed{}.",
            }
        ],
        "images": [{"path": "geo/3.png"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "48"},
        "extra_info": {"split": "train", "index": 3, "answer": "48", "question": "<image>Find x."},
        **changes,
    }
    return {key: value for key, value in out.items() if value is not None}


def test_a_row() -> None:
    sample = read(row())
    assert (sample.id, sample.answer_type, sample.task) == ("hiyouga/geometry3k-train-3", "math", "math")
    assert (sample.question, sample.answer, sample.meta["source"]) == ("Find x.", "48", "hiyouga/geometry3k")
    assert [ref.path for ref in sample.media] == ["geo/3.png"]
    assert sample.meta["extra_info"]["answer"] == "48"
    assert sample.meta["instructions"].startswith("You FIRST think")
    earns_full_reward(sample)


def test_it_is_known_by_its_keys() -> None:
    only_detected_by("verl", row(), {"prompt": "Q", "reward_model": {"ground_truth": "A"}})


def test_the_source_decides_where_it_speaks() -> None:
    sample = read(row(), answer_type="number", task="geometry")
    assert (sample.answer_type, sample.task, dict(sample.gt)) == ("number", "geometry", {"number": 48})
    earns_full_reward(sample)


def test_ids() -> None:
    assert read(row(extra_info={"index": 3})).id == "hiyouga/geometry3k-3"
    assert read(row(extra_info={"index": "q7"}, data_source=None)).id == "q7"
    assert read(row(uid="u1")).id == "u1"
    assert read(row(extra_info=None), place=9).id.endswith("-9")


def test_videos_with_processing_keys() -> None:
    video = {"type": "video", "video": "v/a.mp4", "fps": 2.0, "max_frames": 64}
    prompt = [{"role": "user", "content": "<video>When does it open?"}]
    truth = {"style": "rule", "ground_truth": {"time": [3.2, "0:05.25"]}}
    changed = row(images=None, videos=[video], prompt=prompt, reward_model=truth, ability="grounding")
    sample = read(changed, answer_type="time_span", time_unit="s")
    assert [(ref.kind, ref.path) for ref in sample.media] == [("video", "v/a.mp4")]
    assert sample.meta["media_options"] == {"videos[0]": {"fps": 2.0, "max_frames": 64}}
    assert (sample.answer, sample.gt["time"]) == ("3.20 to 5.25", [3.2, 5.25])
    earns_full_reward(sample)
    refused(changed, "time_unit", "3.2", answer_type="time_span")


@pytest.mark.parametrize(
    "truth", ["[0.1, 0.2, 0.5, 0.6]", [[0.1, 0.2, 0.5, 0.6]], {"boxes": [0.1, 0.2, 0.5, 0.6]}, '[{"bbox_2d": [0.1, 0.2, 0.5, 0.6]}]']
)
def test_boxes(truth: Any) -> None:
    sample = read(row(reward_model={"ground_truth": truth}), answer_type="bbox", frame="norm1")
    assert sample.gt["boxes"] == [[100, 200, 500, 600]]
    assert sample.meta["frame"] == "norm1000"
    assert sample.answer == '{"boxes": [[100, 200, 500, 600]]}'
    earns_full_reward(sample)
    refused(row(reward_model={"ground_truth": truth}), "frame", "nothing says", answer_type="bbox")


def test_points_and_boxes_to_point_into() -> None:
    point = read(row(reward_model={"ground_truth": [0.25, 0.5]}), answer_type="point", frame="norm1")
    assert (point.answer, point.gt["points"]) == ("[250, 500]", [[250, 500]])
    several = read(row(reward_model={"ground_truth": "[[1, 2], [3, 4]]"}), answer_type="point", frame="norm1000")
    assert several.answer == '{"points": [[1, 2], [3, 4]]}'
    box = read(row(reward_model={"ground_truth": [100, 200, 300, 500]}), answer_type="point", frame="norm1000")
    assert (box.answer, box.gt["boxes"]) == ("[200, 350]", [[100, 200, 300, 500]])
    earns_full_reward(box, "point_in_box")


@pytest.mark.parametrize(
    ("changes", "reason", "match"),
    [
        ({"reward_model": {"style": "rule"}}, "missing_key", r"reward_model\.ground_truth"),
        ({"reward_model": {"style": "model", "ground_truth": "x"}}, "bad_value", r"reward_model\.style"),
        ({"reward_model": "48"}, "bad_type", "'reward_model'"),
        ({"reward_model": {"ground_truth": ["48", "forty-eight"]}}, "answer", "list"),
        ({"audios": ["a.wav"]}, "sound", "'audios'"),
        ({"images": [{"bytes": "x", "path": None}]}, "image_bytes", "media_folder"),
        ({"images": ["../a.png"]}, "forbidden", r"'\.\.'"),
        ({"extra_info": [3]}, "bad_type", "'extra_info'"),
        ({"prompt": [{"role": "user", "content": "Is <image> red?"}]}, "placeholder", "within its text"),
    ],
)
def test_refused(changes: dict[str, Any], reason: str, match: str) -> None:
    refused(row(**changes), reason, match, adapter="verl")
