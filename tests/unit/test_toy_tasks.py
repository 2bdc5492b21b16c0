"""The toy task: scenes, rows, spans and the best constant answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.toy.tasks import (
    COLORS,
    HALF,
    LOOSE_HALVES,
    MAX_HALVES,
    MIN_HALVES,
    PHRASINGS,
    RATES,
    SHAPES,
    SIZES,
    SPLITS,
    TARGET_HALVES,
    Event,
    Scene,
    best_constant,
    format_span,
    loose_span,
    make_row,
    make_scene,
    question,
    span_iou,
    thought,
    tokenizer_corpus,
)

scenes = st.builds(make_scene, st.integers(0, 50), st.sampled_from(SPLITS), st.integers(0, 10_000))

SCENE = Scene(
    split="train",
    index=12,
    duration=8.0,
    rate=6,
    size=(84, 56),
    events=(
        Event(color="red", shape="square", start=3.0, end=5.5, quarter=1),
        Event(color="blue", shape="circle", start=0.0, end=4.0, quarter=2),
    ),
    phrasing=0,
)


@given(scenes)
def test_a_scene_is_well_formed(scene: Scene) -> None:
    assert MIN_HALVES * HALF <= scene.duration <= MAX_HALVES * HALF
    assert scene.rate in RATES
    assert scene.size in SIZES
    assert len(scene.events) in (2, 3)
    for event in scene.events:
        assert event.color in COLORS
        assert event.shape in SHAPES
        assert 0 <= event.start < event.end <= scene.duration
        assert TARGET_HALVES[0] <= (event.end - event.start) / HALF <= TARGET_HALVES[1]
        for time in event.span:
            assert time * 2 == int(time * 2)
            assert time < 10  # two digits
            assert time * scene.rate == int(time * scene.rate)  # a frame lies on the boundary
    assert len({e.color for e in scene.events}) == len(scene.events)
    assert len({e.quarter for e in scene.events}) == len(scene.events)


def test_scenes_depend_on_every_coordinate() -> None:
    base = make_scene(0, "train", 0).events
    assert base == make_scene(0, "train", 0).events
    assert base != make_scene(1, "train", 0).events
    assert base != make_scene(0, "test", 0).events
    assert base != make_scene(0, "train", 1).events


def test_no_two_videos_of_any_split_show_the_same() -> None:
    seen = {(s.duration, s.rate, s.size, s.events) for split in SPLITS for s in (make_scene(0, split, i) for i in range(1500))}
    assert len(seen) == 4 * 1500


def test_every_choice_occurs() -> None:
    some = [make_scene(0, "train", i) for i in range(600)]
    assert {s.size for s in some} == set(SIZES)
    assert {s.rate for s in some} == set(RATES)
    assert {s.phrasing for s in some} == set(range(len(PHRASINGS)))
    assert {(s.events[0].color, s.events[0].shape) for s in some} == {(c, k) for c in COLORS for k in SHAPES}


def test_row_of_a_known_scene() -> None:
    assert make_row(0, SCENE) == {
        "id": "toy-train-000012",
        "task": "temporal_grounding",
        "answer_type": "time_span",
        "data_type": "video",
        "video": "videos/train/000012.mp4",
        "prompt": "When is the red square visible?",
        "answer": "3.0 to 5.5",
        "gt": {"time": [3.0, 5.5]},
        "source": "toy",
        "thought": thought(SCENE),
        "meta": {
            "duration": 8.0,
            "fps": 6,
            "size": [84, 56],
            "labels": "exact",
            "phrasing": 0,
            "events": [
                {"color": "red", "shape": "square", "time": [3.0, 5.5], "quarter": 1, "asked": True},
                {"color": "blue", "shape": "circle", "time": [0.0, 4.0], "quarter": 2, "asked": False},
            ],
        },
    }


def test_rows_are_the_same_bytes_everywhere() -> None:
    """A frozen hash: it changes only when rows change, and then kept worlds must be rebuilt (`world.FORMAT`)."""
    import hashlib

    text = "".join(json.dumps(make_row(0, make_scene(0, split, i))) + "\n" for split in SPLITS for i in range(20))
    assert hashlib.sha256(text.encode()).hexdigest() == "PLACEHOLDER"


@given(scenes)
def test_only_train_rows_carry_a_thought_and_it_is_true(scene: Scene) -> None:
    row = make_row(0, scene)
    assert ("thought" in row) == (scene.split == "train")
    asked = scene.events[0]
    if scene.split == "train":
        for word in (asked.color, asked.shape, f"{asked.start:.1f}", f"{asked.end:.1f}"):
            assert word in row["thought"]
    assert asked.name in row["prompt"] == question(scene)


@given(scenes, st.integers(0, 5))
def test_loose_spans_contain_the_true_one(scene: Scene, seed: int) -> None:
    start, end = loose_span(seed, scene)
    asked = scene.events[0]
    assert max(0.0, asked.start - LOOSE_HALVES * HALF) <= start <= asked.start
    assert asked.end <= end <= min(scene.duration, asked.end + LOOSE_HALVES * HALF)
    row = make_row(seed, scene)
    if scene.split == "pretrain":
        assert row["meta"]["labels"] == "loose"
        assert row["gt"]["time"] == [start, end]
        assert row["answer"] == format_span((start, end))
        assert row["meta"]["events"][0]["time"] == list(asked.span)
    else:
        assert row["gt"]["time"] == list(asked.span)


def test_corpus_has_every_word_of_every_question() -> None:
    text = " ".join(tokenizer_corpus(["Zebra quux."]))
    assert "Zebra quux." in text
    for i in range(200):
        assert question(make_scene(3, "test", i)) in text


def test_span_iou_by_hand() -> None:
    assert span_iou((1.0, 3.0), (2.0, 5.0)) == pytest.approx(1 / 4)
    assert span_iou((1.0, 3.0), (3.0, 5.0)) == 0.0
    assert span_iou((0.0, 4.0), (1.0, 2.0)) == pytest.approx(0.25)
    assert span_iou((2.0, 2.0), (2.0, 2.0)) == 0.0


def test_best_constant_by_hand() -> None:
    # [0, 2]: (1 + 1 + 0) / 3; [0, 4]: (.5 + .5 + .5) / 3; nothing beats 2/3.
    rows = [{"gt": {"time": [0.0, 2.0]}}, {"gt": {"time": [0.0, 2.0]}}, {"gt": {"time": [2.0, 4.0]}}]
    span, score = best_constant(rows)
    assert span == (0.0, 2.0)
    assert score == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="at least one row"):
        best_constant([])


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), min_size=1, max_size=6))
def test_best_constant_beats_each_truth_as_a_constant(pairs: list[tuple[int, int]]) -> None:
    truths = [(a * HALF, (a + n) * HALF) for a, n in pairs]
    _, score = best_constant([{"gt": {"time": list(t)}} for t in truths])
    for constant in truths:
        assert score >= sum(span_iou(constant, t) for t in truths) / len(truths) - 1e-12
