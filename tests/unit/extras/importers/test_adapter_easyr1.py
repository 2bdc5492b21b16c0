"""importers.easyr1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.foreign import earns_full_reward, only_detected_by, read, refused


def row(**changes: Any) -> dict[str, Any]:
    out = {"problem": "<image>Find x.", "answer": "\\frac{1}{2}", "images": ["./geo/a.png"], **changes}
    return {key: value for key, value in out.items() if value is not None}


def test_a_row() -> None:
    sample = read(row(), answer_type="math", task="geometry")
    assert (sample.question, sample.answer, sample.task) == ("Find x.", "\\frac{1}{2}", "geometry")
    assert [(ref.kind, ref.path) for ref in sample.media] == [("image", "geo/a.png")]
    earns_full_reward(sample)


def test_it_is_known_by_its_keys() -> None:
    only_detected_by("easyr1", row(), {"problem": "Q", "solution": "A", "image": "a.png"}, row(images=None, videos=["v.mp4"]))


def test_several_media_keep_their_order() -> None:
    problem = "<image><video><image>Which differs?"
    sample = read(row(problem=problem, images=["a.png", "b.png"], videos=["v.mp4"], answer="B", options=["one", "two"]))
    assert [ref.path for ref in sample.media] == ["a.png", "v.mp4", "b.png"]
    assert sample.answer_type == "choice"
    earns_full_reward(sample)


def test_answer_before_solution() -> None:
    both = read(row(solution="<think>long</think><answer>0.5</answer>"), answer_type="math")
    assert (both.answer, both.thought) == ("\\frac{1}{2}", None)
    only = read(row(answer=None, solution="<think>long</think><answer>0.5</answer>"), answer_type="math")
    assert (only.answer, only.thought) == ("0.5", "long")


def test_boxes_in_pixels_take_the_size_from_the_file(tmp_path: Path) -> None:
    Image.new("RGB", (400, 300)).save(tmp_path / "a.png")
    rec = {"problem": "Where is the dog?", "image": "a.png", "solution": [10, 20, 110, 220], "dataset": "refcoco"}
    sample = read(rec, answer_type="bbox", frame="pixel", media_dir=tmp_path)
    assert sample.gt["boxes"] == [[25, 66.67, 275, 733.33]]
    assert sample.meta["frame"] == "norm1000"
    earns_full_reward(sample)
    kept = read(rec, answer_type="bbox", frame="pixel", to_frame="pixel", media_dir=tmp_path)
    assert (kept.gt["boxes"], kept.meta["frame"], kept.meta["size"]) == ([[10, 20, 110, 220]], "pixel", [400, 300])
    refused({**rec, "solution": [10, 20, 410, 220]}, "frame", "outside", answer_type="bbox", frame="pixel", media_dir=tmp_path)
    refused({**rec, "image": "b.png"}, "missing", "b.png", answer_type="bbox", frame="pixel", media_dir=tmp_path)
    refused({**rec, "image": ["a.png", "a.png"]}, "frame", "exactly one", answer_type="bbox", frame="pixel", media_dir=tmp_path)
    refused(rec, "frame", "folder of the media", answer_type="bbox", frame="pixel")


def test_a_turned_picture_is_measured_as_it_is_shown(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    Image.new("RGB", (400, 300)).save(tmp_path / "a.jpg", exif=exif)
    rec = {"problem": "Where?", "image": "a.jpg", "solution": [30, 40, 150, 200]}
    sample = read(rec, answer_type="bbox", frame="pixel", media_dir=tmp_path)
    assert sample.gt["boxes"] == [[100, 100, 500, 500]]  # of 300 x 400


@pytest.mark.parametrize(
    ("changes", "reason", "match"),
    [
        ({"answer": None}, "missing_key", "'answer'"),
        ({"problem": ""}, "bad_value", "'problem'"),
        ({"problem": 3}, "bad_type", "'problem'"),
        ({"problem": "<image><image>Q"}, "placeholder", "2 <image>"),
        ({"problem": "<|image_pad|>Q", "images": None}, "control_token", "image_pad"),
        ({"options": "A"}, "bad_type", "'options'"),
        ({"image": "b.png"}, "bad_value", "both given"),
        ({"images": ["./../a.png"]}, "forbidden", "media path"),
    ],
)
def test_refused(changes: dict[str, Any], reason: str, match: str) -> None:
    refused(row(**changes), reason, match, adapter="easyr1", answer_type="math")
