"""importers.vlm_r1."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.foreign import earns_full_reward, only_detected_by, read, refused


def row(**changes: Any) -> dict[str, Any]:
    talk = [{"from": "human", "value": "<image>What number of balls are there?"}, {"from": "gpt", "value": "0"}]
    out = {"id": 1, "image": "clevr/a.png", "conversations": talk, **changes}
    return {key: value for key, value in out.items() if value is not None}


def told(value: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": "<image>Which?"}, {"from": "gpt", "value": value}]


def test_a_row() -> None:
    sample = read(row(), answer_type="number", task="counting")
    assert (sample.id, sample.question, sample.answer) == ("1", "What number of balls are there?", "0")
    assert (sample.task, dict(sample.gt), sample.media[0].path) == ("counting", {"number": 0}, "clevr/a.png")
    earns_full_reward(sample)


def test_it_is_known_by_its_keys() -> None:
    only_detected_by("vlm_r1", row(), row(image=["a.png", "b.png"]))


@pytest.mark.parametrize(
    ("method", "answer", "kind"),
    [("mcq", "B", "choice"), ("math", "\\frac{1}{2}", "math"), ("yes_no", "Yes", "exact_text"), ("numeric", "3.5", "number")],
)
def test_methods_say_the_answer_type(method: str, answer: str, kind: str) -> None:
    sample = read(row(conversations=told(answer), accu_reward_method=method), answer_type="short_text")
    assert (sample.answer_type, sample.answer) == (kind, answer)
    earns_full_reward(sample)


def test_default_leaves_it_to_the_source() -> None:
    assert read(row(accu_reward_method="default"), answer_type="short_text").answer_type == "short_text"
    refused(row(accu_reward_method="default"), "answer_type", "set 'answer_type'")


def test_boxes() -> None:
    answer = '<answer>{"bbox_2d": [100, 200, 500, 600]}</answer>'
    sample = read(row(conversations=told(answer), accu_reward_method="iou"), frame="norm1000")
    assert sample.gt["boxes"] == [[100, 200, 500, 600]]
    earns_full_reward(sample)


def test_several_images() -> None:
    talk = [{"from": "human", "value": "<image>\n<image>\nSame?"}, {"from": "gpt", "value": "no"}]
    sample = read(row(image=["a.png", "b.png"], conversations=talk), answer_type="exact_text")
    assert ([ref.path for ref in sample.media], sample.question) == (["a.png", "b.png"], "Same?")


def test_solution_in_place_of_the_answer() -> None:
    asked = row(conversations=told("x")[:1], solution="yes")
    assert read(asked, answer_type="exact_text").answer == "yes"
    refused(row(solution="yes"), "answer", "differ", answer_type="exact_text")


@pytest.mark.parametrize(
    ("changes", "reason", "match"),
    [
        ({"accu_reward_method": "vibes"}, "problem_type", "known: all match, iou"),
        ({"accu_reward_method": "weighted_sum"}, "problem_type", "no answer type"),
        ({"accu_reward_method": 3}, "bad_type", "accu_reward_method"),
        ({"conversations": told("x")[:1]}, "missing_key", "no turn of gpt"),
        ({"conversations": [*told("x"), *told("y")]}, "turns", r"conversations\[2\]"),
        ({"conversations": []}, "bad_type", "'conversations'"),
        ({"image": {"name": "a.png"}}, "unknown_key", r"images\[0\]\.name"),
    ],
)
def test_refused(changes: dict[str, Any], reason: str, match: str) -> None:
    refused(row(**changes), reason, match, adapter="vlm_r1", answer_type="exact_text")
