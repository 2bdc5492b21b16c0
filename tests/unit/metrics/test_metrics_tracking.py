"""metrics.tracking: reading and overlap of tracks and tubes, by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.tracking import MOST_FRAMES, Track, Tube, parse_track, parse_tube, track_iou, track_of, tube_of

BOX, HALF, FAR = (0.0, 0.0, 10.0, 10.0), (0.0, 0.0, 10.0, 5.0), (50.0, 50.0, 60.0, 60.0)
GOLD: Track = {1.0: BOX, 2.0: BOX, 3.0: BOX, 4.0: BOX}


@pytest.mark.parametrize(
    ("pred", "gold", "common", "union"),
    [
        (GOLD, 1, 1, 1),
        ({1.0: BOX, 2.0: HALF}, 1.5 / 4, 1.5 / 2, 1.5 / 4),
        ({1.0: BOX, 9.0: BOX}, 1 / 4, 1, 1 / 5),
        ({9.0: BOX}, 0, 0, 0),
        ({**GOLD, 4.0: FAR}, 3 / 4, 3 / 4, 3 / 4),
        ({}, 0, 0, 0),
    ],
)
def test_track_iou(pred: Track, gold: float, common: float, union: float) -> None:
    got = [track_iou(pred, GOLD, over=over) for over in ("gold", "common", "union")]  # type: ignore[arg-type]
    assert got == pytest.approx([gold, common, union])


frames = st.dictionaries(st.integers(0, 6).map(float), st.sampled_from([BOX, HALF, FAR]), max_size=6)


@given(frames, frames)
def test_order_of_the_three_averages(pred: Track, gold: Track) -> None:
    union, true, common = (track_iou(pred, gold, over=over) for over in ("union", "gold", "common"))  # type: ignore[arg-type]
    assert 0 <= union <= true <= common + 1e-12 <= 1 + 1e-12
    assert union == pytest.approx(track_iou(gold, pred, over="union"))


def test_frames_are_numbers() -> None:
    assert track_of({"1": [0, 0, 10, 10], " 2.5": [0, 0, 10, 5]}) == {1.0: BOX, 2.5: HALF}
    for wrong in (
        {"1": [0, 0, 1]},
        {"one": [0, 0, 1, 1]},
        {"1": [0, 0, 1, 1], "01": [0, 0, 1, 1]},
        {1: [0, 0, 1, 1]},
        [],
        {"-1": [0, 0, 1, 1]},
    ):
        assert track_of(wrong) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"boxes": {"1": [0, 0, 10, 10]}}', {1.0: BOX}),
        ('It is {"boxes": {"1": [0, 0, 10, 10]}}.', {1.0: BOX}),
        ('{"boxes": {}}', {}),
        ('{"boxes": [0, 0, 10, 10]}', None),
        ('{"boxes": {"1": [0, 0, 10, NaN]}}', None),
        ("none", None),
    ],
)
def test_reading_tracks(text: str, found: Track | None) -> None:
    assert parse_track(text) == found


def test_long_tracks_are_read_and_longer_ones_are_not() -> None:
    track = {str(i): [100.25, 200.25, 300.25, 400.25] for i in range(MOST_FRAMES)}
    assert len(parse_track(json.dumps({"boxes": track})) or {}) == MOST_FRAMES
    assert parse_track(json.dumps({"boxes": {**track, "999": [0, 0, 1, 1]}})) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"time": [1, 2.5], "boxes": {"1": [0, 0, 10, 10]}}', Tube(time=(1.0, 2.5), boxes={1.0: BOX})),
        ('{"time": [1, 2.5]}', Tube(time=(1.0, 2.5), boxes=None)),
        ('{"boxes": {"1": [0, 0, 10, 10]}}', Tube(time=None, boxes={1.0: BOX})),
        ('{"time": [1], "boxes": [1]}', None),
        ("1 to 2", None),
    ],
)
def test_reading_tubes(text: str, found: Tube | None) -> None:
    assert parse_tube(text) == found


def test_tubes_of_objects() -> None:
    assert tube_of({"time": [3, 1], "boxes": {}}) == Tube(time=(3.0, 1.0), boxes={})
    assert tube_of({}) is None


@given(st.text(alphabet='[]{},.": boxestim0123456789', max_size=80))
def test_reading_never_fails(text: str) -> None:
    assert parse_track(text) is None or parse_tube(text) is not None
