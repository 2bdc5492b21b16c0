"""Ground truth of answer types through the row schema, and the scorers of its answer types: a gold answer is readable and scores 1."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.data.row import parse_row
from vlmrl.errors import RowError
from vlmrl.types import Sample

TRACK = {"1": [0, 0, 10, 10], "2.5": [0, 0, 10, 10]}
SEGMENTATION = {"boxes": [0, 0, 9, 9], "positive_points": [[1, 1]], "negative_points": [[20, 20]]}
SALIENCY = {"duration": 10, "clips": [0, 1], "scores": [[4, 4, 2], [1, 2, 3]]}
GOOD: list[tuple[str, dict[str, Any], str]] = [
    ("point", {"points": [[100, 200]]}, '{"points": [[100, 200]]}'),
    ("highlight", {"highlights": [[1, 4.5], [3, 2]]}, '{"highlights": [[1, 4.5], [3, 2]]}'),
    ("highlight", {"highlights": [[1, 4.5], [3, 2]], "saliency": SALIENCY}, '{"highlights": [[1, 4.5], [3, 2]]}'),
    ("highlight", {"highlights": [[0, 4], [1, 2]], "clip_seconds": 1}, '{"highlights": [[0, 4], [1, 2]]}'),
    ("tracking", {"track": TRACK}, json.dumps({"boxes": TRACK})),
    ("spatio_temporal", {"tube": {"time": [1, 2.5], "boxes": TRACK}}, json.dumps({"time": [1, 2.5], "boxes": TRACK})),
    ("segmentation", {"segmentation": SEGMENTATION}, json.dumps(SEGMENTATION)),
    ("segmentation", {"segmentation": {**SEGMENTATION, "time": 3}}, json.dumps({**SEGMENTATION, "time": 3})),
]


def parse(answer_type: str, gt: Any, **more: Any) -> Sample:
    base = {
        "id": "a",
        "task": "t",
        "answer_type": answer_type,
        "image": "a.png",
        "prompt": "Where?",
        "gt": gt,
        "meta": {"frame": "norm1000"},
    }
    return parse_row({**base, **more}, source="rows.jsonl:1", media_root="")


def refused(answer_type: str, gt: Any) -> tuple[str, str]:
    with pytest.raises(RowError) as caught:
        parse(answer_type, gt)
    return caught.value.reason, str(caught.value)


@pytest.mark.parametrize(("answer_type", "gt", "answer"), GOOD)
def test_answers_are_built_and_score_full_marks(answer_type: str, gt: dict[str, Any], answer: str) -> None:
    sample = parse(answer_type, gt)
    assert (sample.answer, sample.gt) == (answer, gt)
    pred, _, scores = ANSWER_TYPES[answer_type].score(sample.answer, sample)
    assert pred is not None
    assert scores[ANSWER_TYPES[answer_type].main] == 1
    assert all(0 <= value <= 1 for value in scores.values())
    pred, _, scores = ANSWER_TYPES[answer_type].score(None, sample)
    assert pred is None
    assert scores[ANSWER_TYPES[answer_type].main] == 0
    assert ANSWER_TYPES[answer_type].score("nowhere", sample)[0] is None


def test_given_answers_are_kept() -> None:
    assert parse("highlight", {"highlights": [[1, 4]]}, answer="1 second. score 4").answer == "1 second. score 4"
    assert parse("point", {}, answer="[1, 2]").answer == "[1, 2]"


MASK = {"size": [2, 2], "counts": [1, 3]}


@pytest.mark.parametrize(
    ("answer_type", "gt", "reason", "named"),
    [
        ("point", {}, "missing_key", "'answer'"),
        ("point", {"boxes": [[0, 0, 1, 1]]}, "missing_key", "'answer'"),
        ("point", {"points": []}, "bad_value", "gt.points"),
        ("point", {"points": [[1]]}, "bad_type", "gt.points[0]"),
        ("point", {"points": [[1, -1]]}, "bad_value", "gt.points"),
        ("point", {"points": [[1, 1]] * 61}, "bad_value", "at most 60"),
        ("point", {"boxes": [[2, 0, 1, 1]]}, "bad_value", "gt.boxes[0]"),
        ("point", {"boxes": 3}, "bad_type", "gt.boxes"),
        ("point", {"mask": []}, "bad_type", "gt.mask"),
        ("point", {"mask": {**MASK, "counts": "x"}}, "bad_type", "gt.mask"),
        ("point", {"mask": {**MASK, "counts": [1, 2]}}, "bad_value", "gt.mask.counts"),
        ("point", {"mask": {**MASK, "counts": [4]}}, "bad_value", "some of them inside"),
        ("point", {"mask": {"size": [2**20, 2**20], "counts": [1, 2**40 - 1]}}, "bad_value", "gt.mask.counts"),
        ("highlight", {}, "missing_key", "'gt.highlights'"),
        ("highlight", {"highlights": []}, "bad_value", "0 entries"),
        ("highlight", {"highlights": [[1]]}, "bad_type", "gt.highlights[0]"),
        ("highlight", {"highlights": [[1, 0]]}, "bad_value", "above 0"),
        ("highlight", {"highlights": [[-1, 2]]}, "bad_value", ">= 0"),
        ("highlight", {"highlights": [[1, 2], [1, 3]]}, "bad_value", "two times in one clip of 2 s"),
        ("highlight", {"highlights": [[0, 2], [1.9, 3]]}, "bad_value", "gt.clip_seconds"),
        ("highlight", {"highlights": [[0, 2]], "clip_seconds": 0}, "bad_value", "gt.clip_seconds"),
        ("highlight", {"highlights": [[0, 2]], "clip_seconds": 5e-324}, "bad_value", "gt.clip_seconds"),
        ("highlight", {"highlights": [[1e300, 2]]}, "bad_value", "beyond 1e+09"),
        ("highlight", {"highlights": [[1, 2]], "saliency": {**SALIENCY, "duration": 1e9}}, "bad_value", "gt.saliency.duration"),
        ("highlight", {"highlights": [[0, 2]], "clip_seconds": "2"}, "bad_type", "gt.clip_seconds"),
        ("highlight", {"highlights": [[1, 2]], "saliency": {}}, "bad_type", "gt.saliency.duration"),
        ("highlight", {"highlights": [[1, 2]], "saliency": {**SALIENCY, "clips": [0, 5]}}, "bad_value", "gt.saliency.clips"),
        ("highlight", {"highlights": [[1, 2]], "saliency": {**SALIENCY, "clips": [0]}}, "bad_value", "gt.saliency.clips"),
        ("highlight", {"highlights": [[1, 2]], "saliency": {**SALIENCY, "scores": [[4], [4, 4]]}}, "bad_value", "gt.saliency.scores"),
        ("highlight", {"highlights": [[1, 2]], "saliency": {**SALIENCY, "scores": [[4], [5]]}}, "bad_value", "0 to 4"),
        ("tracking", {"boxes": [[0, 0, 1, 1]]}, "missing_key", "'gt.track'"),
        ("tracking", {"track": {}}, "bad_value", "0 frames"),
        ("tracking", {"track": {"one": [0, 0, 1, 1]}}, "bad_value", "'one'"),
        ("tracking", {"track": {"1": [0, 0, 1, 1], "1.0": [0, 0, 1, 1]}}, "bad_value", "twice"),
        ("tracking", {"track": {"1": [0, 0, 0, 1]}}, "bad_value", "gt.track.1"),
        ("tracking", {"track": {"1": [0, 0, True, 1]}}, "bad_type", "gt.track.1"),
        ("tracking", {"track": {str(i): [0, 0, 1, 1] for i in range(257)}}, "bad_value", "257 frames"),
        ("spatio_temporal", {"tube": [1, 2]}, "bad_type", "gt.tube"),
        ("spatio_temporal", {"tube": {"time": [2, 1], "boxes": TRACK}}, "bad_value", "gt.tube.time"),
        ("spatio_temporal", {"tube": {"time": [1, 2]}}, "bad_type", "gt.tube.boxes"),
        ("segmentation", {"segmentation": {**SEGMENTATION, "boxes": [[0, 0, 1, 1]]}}, "bad_type", "gt.segmentation.boxes"),
        ("segmentation", {"segmentation": {**SEGMENTATION, "positive_points": []}}, "bad_value", "0 positive"),
        ("segmentation", {"segmentation": {"boxes": [0, 0, 1, 1], "positive_points": [[1, 1]]}}, "bad_type", "negative_points"),
        ("segmentation", {"segmentation": {**SEGMENTATION, "time": -1}}, "bad_value", "gt.segmentation.time"),
        ("segmentation", {"segmentation": {**SEGMENTATION, "time": "1"}}, "bad_type", "gt.segmentation.time"),
    ],
)
def test_refused(answer_type: str, gt: Any, reason: str, named: str) -> None:
    got, message = refused(answer_type, gt)
    assert got == reason
    assert named in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["1", "time", "boxes", "size", "counts"]), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = ("clip_seconds", "points", "boxes", "mask", "highlights", "saliency", "track", "tube", "segmentation")


number = st.integers(0, 9) | st.floats(0, 10)
pair = st.lists(number, min_size=2, max_size=2)


@given(st.lists(pair, min_size=1, max_size=4), st.sampled_from([1, 2.0, 0.5, 5e-324, 1e9]))
def test_accepted_highlights_are_scored(pairs: list[list[float]], clip: float) -> None:
    try:
        sample = parse("highlight", {"highlights": pairs, "clip_seconds": clip})
    except RowError:
        return
    assert ANSWER_TYPES["highlight"].score(sample.answer, sample)[2]["highlight"] == pytest.approx(1)


@given(st.sampled_from([kind for kind, _, _ in GOOD]), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
def test_any_ground_truth_gives_a_sample_or_a_row_error(answer_type: str, gt: dict[str, Any]) -> None:
    try:
        sample = parse(answer_type, gt)
    except RowError:
        return
    assert ANSWER_TYPES[answer_type].score(sample.answer, sample)[2][ANSWER_TYPES[answer_type].main] == pytest.approx(1)


def test_highlights_at_the_level_of_qvhighlights() -> None:
    sample = parse("highlight", {"highlights": [[1, 4], [3, 2]], "saliency": SALIENCY})
    right = ANSWER_TYPES["highlight"].score('{"highlights": [[1, 4]]}', sample)[2]
    # very good: clip 0 for two annotators, no clip for the third
    assert (right["highlight_hit1"], right["highlight_map"]) == (1, pytest.approx(2 / 3))
    wrong = ANSWER_TYPES["highlight"].score('{"highlights": [[3, 4]]}', sample)[2]
    # clip 0 comes with the four others that have score 0: precision 1/5
    assert (wrong["highlight_hit1"], wrong["highlight_map"]) == (0, pytest.approx(2 / 15))
    unread = ANSWER_TYPES["highlight"].score(None, sample)[2]
    assert (unread["highlight_hit1"], unread["highlight_map"]) == (0, pytest.approx(2 / 15))


def test_tubes_are_evaluated_over_the_frames_of_both() -> None:
    sample = parse("spatio_temporal", {"tube": {"time": [1, 3], "boxes": TRACK}})
    scores = ANSWER_TYPES["spatio_temporal"].score('{"time": [3, 2], "boxes": {"1": [0, 0, 10, 10], "7": [0, 0, 1, 1]}}', sample)[2]
    assert scores == {"tube_iou": pytest.approx(1 / 3), "tiou": 0.5}
