"""The toy task: scenes, rows, and spans."""

from __future__ import annotations

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from vlmrl.data.row import parse_row
from vlmrl.extras.toy.tasks import (
    COLORS,
    CORNERS,
    GREY,
    HALF,
    LOOSE,
    MAX_HALVES,
    MIN_HALVES,
    PHRASINGS,
    RATES,
    SHAPES,
    SIZES,
    SPLITS,
    TARGET_SECONDS,
    Event,
    Scene,
    Split,
    format_span,
    loose_span,
    make_row,
    make_scene,
    question,
    thought,
    tokenizer_corpus,
)

scenes = st.builds(make_scene, st.integers(0, 50), st.sampled_from(SPLITS), st.integers(0, 10_000))

SCENE = Scene(
    split="train",
    index=12,
    duration=7.5,
    rate=6,
    size=(96, 72),
    events=(
        Event(color="red", shape="square", start=3.0, end=5.0, quarter=1),
        Event(color="grey", shape="circle", start=0.0, end=4.0, quarter=2),
    ),
    phrasing=0,
)


@given(scenes)
def test_a_scene_is_well_formed(scene: Scene) -> None:
    assert MIN_HALVES * HALF <= scene.duration <= MAX_HALVES * HALF
    assert scene.rate in RATES
    assert scene.size in SIZES
    assert len(scene.events) in (2, 3)
    assert scene.events[0].color in COLORS
    assert {event.color for event in scene.events[1:]} == {GREY}
    for event in scene.events:
        assert event.shape in SHAPES
        assert 0 <= event.start < event.end <= scene.duration
        assert TARGET_SECONDS[0] <= event.end - event.start <= TARGET_SECONDS[1]
        for time in event.span:
            assert time == int(time)
            assert time < 10  # two digits
    assert len({e.quarter for e in scene.events}) == len(scene.events)


def test_scenes_depend_on_every_coordinate() -> None:
    base = make_scene(0, "train", 0).events
    assert base == make_scene(0, "train", 0).events
    assert base != make_scene(1, "train", 0).events
    assert base != make_scene(0, "test", 0).events
    assert base != make_scene(0, "train", 1).events


def test_what_is_held_out_is_shown_nowhere_else() -> None:
    """Even without noise and motion: no scene of 200 held-out ones occurs among 3000 that are trained on."""

    def shown(split: Split, n: int) -> set[object]:
        return {(s.duration, s.rate, s.size, s.events) for s in (make_scene(0, split, i) for i in range(n))}

    assert not (shown("test", 200) | shown("validation", 64)) & (shown("train", 1000) | shown("pretrain", 2000))


def test_every_choice_occurs() -> None:
    some = [make_scene(0, "train", i) for i in range(600)]
    assert {s.size for s in some} == set(SIZES)
    assert {s.rate for s in some} == set(RATES)
    assert {s.phrasing for s in some} == set(range(len(PHRASINGS)))
    assert {(s.events[0].color, s.events[0].shape) for s in some} == {(c, k) for c in COLORS for k in SHAPES}


META = {
    "duration": 7.5,
    "fps": 6,
    "size": [96, 72],
    "labels": "exact",
    "phrasing": 0,
    "events": [
        {"color": "red", "shape": "square", "time": [3.0, 5.0], "quarter": 1},
        {"color": "grey", "shape": "circle", "time": [0.0, 4.0], "quarter": 2},
    ],
}


def test_row_of_a_known_scene() -> None:
    assert make_row(0, SCENE) == {
        "id": "toy-train-000012",
        "task": "temporal_grounding",
        "answer_type": "time_span",
        "data_type": "video",
        "video": "videos/train/000012.mp4",
        "prompt": "When is the red square visible?",
        "answer": "3.0 to 5.0",
        "gt": {"time": [3.0, 5.0]},
        "source": "toy",
        "meta": META,
    }


@given(scenes)
def test_the_row_reader_accepts_every_row(scene: Scene) -> None:
    row = make_row(0, scene)
    sample = parse_row(json.loads(json.dumps(row)), source="toy.jsonl:1", media_root=".")
    assert sample.id == row["id"]
    assert sample.question == row["prompt"]
    assert sample.answer == row["answer"]
    assert [ref.path for ref in sample.media] == [scene.video]


def test_rows_are_the_same_bytes_everywhere() -> None:
    """A frozen hash: it changes only when rows change, and then kept worlds must be built anew (raise `world.FORMAT`)."""
    text = "".join(json.dumps(make_row(0, make_scene(0, split, i))) + "\n" for split in SPLITS for i in range(20))
    assert hashlib.sha256(text.encode()).hexdigest() == "00911db06cc54b0bd70c04f9eda78e45ecd612e485567be832dc3784c940b81c"


@given(scenes)
def test_only_sft_rows_carry_a_thought_and_it_is_true(scene: Scene) -> None:
    row = make_row(0, scene)
    asked = scene.events[0]
    assert ("thought" in row) == (scene.split == "sft")
    assert asked.name in row["prompt"]
    assert row["answer"] == format_span(tuple(row["gt"]["time"]))
    if "thought" in row:
        assert row["thought"] == thought(scene)
        assert asked.name in row["thought"]
        assert [corner for corner in CORNERS if corner in row["thought"]] == [CORNERS[asked.quarter]]


@given(scenes, st.integers(0, 5))
def test_loose_spans_contain_the_true_one(scene: Scene, seed: int) -> None:
    start, end = loose_span(seed, scene)
    true_start, true_end = scene.events[0].span
    assert start in {true_start, max(0.0, true_start - 1)}
    assert end in {true_end, min(scene.duration, true_end + 1)}


def test_loose_boundaries_are_off_half_of_the_time_and_independently() -> None:
    kinds: dict[tuple[bool, bool], int] = {}
    for i in range(2000):
        scene = make_scene(0, "pretrain", i)
        true_start, true_end = scene.events[0].span
        start, end = loose_span(0, scene)
        if true_start >= 1 and true_end <= scene.duration - 1:
            kinds[start < true_start, end > true_end] = kinds.get((start < true_start, end > true_end), 0) + 1
    total = sum(kinds.values())
    assert total > 500
    for count in (kinds[a, b] for a in (False, True) for b in (False, True)):
        assert abs(count / total - 0.25) < 4 * (0.25 * 0.75 / total) ** 0.5


@given(scenes)
def test_labels_say_which_splits_are_loose(scene: Scene) -> None:
    row = make_row(1, scene)
    assert row["meta"]["labels"] == ("loose" if scene.split in LOOSE else "exact")
    assert row["meta"]["events"][0]["time"] == list(scene.events[0].span)
    if scene.split not in LOOSE:
        assert row["gt"]["time"] == list(scene.events[0].span)
    assert not LOOSE & {"train", "validation", "test"}  # what is trained on by reward and what is held out are exact


def test_corpus_has_every_word_of_every_question() -> None:
    text = " ".join(tokenizer_corpus(["Zebra quux."]))
    assert "Zebra quux." in text
    for i in range(200):
        assert question(make_scene(3, "test", i)) in text
