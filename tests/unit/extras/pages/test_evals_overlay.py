"""Marks in percent of the shown picture, by hand: every answer type, every frame, and what cannot be placed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pages import sample
from vlmrl.answers.marks import MASK_SIDE, mask_rectangles
from vlmrl.extras.pages.overlay import Mark, MarkedFrames, Span, Target, answer_marks, gold_marks, target_of
from vlmrl.metrics.points import decode_mask
from vlmrl.types import MediaRef

STILL = MarkedFrames()
VIDEO = MarkedFrames(indices=(0, 2, 4, 6), times=(0.0, 1.0, 2.0, 3.0))


def target(answer_type: str, gt: dict, **more) -> Target:
    return Target(answer_type=answer_type, gt=gt, **{"frame": "norm1000", **more})


@pytest.mark.parametrize(
    ("meta", "original", "box"),
    [
        ({"frame": "norm1000"}, None, [100, 200, 300, 400]),
        ({"frame": "norm1000"}, (7, 7), [100, 200, 300, 400]),
        ({"frame": "norm1"}, None, [0.1, 0.2, 0.3, 0.4]),
        ({"frame": "pixel"}, (480, 640), [64, 96, 192, 192]),  # (height, width) of the file
        ({"frame": "pixel", "size": [640, 480]}, None, [64, 96, 192, 192]),  # [width, height] of the row
    ],
)
def test_one_box_in_every_frame(meta, original, box):
    marks = gold_marks(target_of(sample("a", "bbox", {"boxes": [box]}, meta=meta), original), STILL)
    assert marks.problems == ()
    (mark,) = marks.shapes
    assert (mark.kind, mark.frame, mark.odd) == ("box", None, False)
    assert mark.points == (pytest.approx((10.0, 20.0)), pytest.approx((30.0, 40.0)))


def test_the_stated_size_goes_before_that_of_the_file_and_says_so():
    made = target_of(sample("a", "bbox", {"boxes": [[10, 10, 50, 50]]}, meta={"frame": "pixel", "size": [100, 200]}), (400, 200))
    marks = gold_marks(made, STILL)
    assert marks.shapes[0].points == ((10.0, 5.0), (50.0, 25.0))
    assert marks.problems == ("meta.size is 100 x 200, the file has 200 x 400; drawn in meta.size",)


@pytest.mark.parametrize(
    ("meta", "original", "problem"),
    [
        ({}, (10, 10), "gt.boxes: not drawn, the row states no coordinate frame; set meta.frame"),
        ({"frame": "percent"}, (10, 10), "meta.frame is 'percent'; known: pixel"),
        ({"frame": "rel1000"}, (10, 10), "meta.frame 'rel1000' is called 'norm1000'"),
        ({"frame": "pixel"}, None, "pixels need the size of their picture; set meta.size"),
        ({"frame": "pixel", "size": [0, 5]}, (10, 10), "meta.size is [0, 5]; pixels need it as [width, height]"),
    ],
)
def test_nothing_is_guessed(meta, original, problem):
    # The numbers would fit a frame of thousandths, of pixels and of shares alike.
    marks = gold_marks(target_of(sample("a", "bbox", {"boxes": [[0, 0, 1, 1]]}, meta=meta), original), STILL)
    assert marks.shapes == ()
    assert any(problem in text for text in marks.problems), marks.problems


def test_a_row_with_several_pictures_does_not_say_which_one_a_box_is_in():
    refs = tuple(MediaRef(kind="image", path=f"{n}.png") for n in range(2))
    marks = gold_marks(target_of(sample("a", "bbox", {"boxes": [[0, 0, 1, 1]]}, media=refs)), STILL)
    assert marks.shapes == ()
    assert "the row has 2 media" in marks.problems[0]


def test_actions_are_in_thousandths_unless_the_row_says_otherwise():
    gt = {"action": {"action": "click", "coordinate": [500, 250], "box": [400, 200, 600, 300]}}
    made = target_of(sample("a", "action", gt, meta={}))
    assert [(m.kind, m.points) for m in gold_marks(made, STILL).shapes] == [("box", ((40, 20), (60, 30))), ("point", ((50, 25),))]
    said = answer_marks(made, STILL, '{"action": "click", "coordinate": [10, 990]}')
    assert said.shapes == (Mark(kind="point", points=((1.0, 99.0),)),)
    assert answer_marks(made, STILL, '{"action": "scroll", "direction": "up"}').shapes == ()
    pixels = target_of(sample("a", "action", gt, meta={"frame": "pixel", "size": [1000, 500]}))
    assert gold_marks(pixels, STILL).shapes[1].points == ((50.0, 50.0),)


def test_answers_of_every_type():
    assert answer_marks(target("bbox", {}), STILL, '{"boxes": [[0, 0, 100, 200], [500, 500, 1000, 1000]]}').shapes == (
        Mark(kind="box", points=((0, 0), (10, 20))),
        Mark(kind="box", points=((50, 50), (100, 100))),
    )
    assert answer_marks(target("point", {}), STILL, "(100, 200)").shapes == (Mark(kind="point", points=((10, 20),)),)
    assert answer_marks(target("time_span", {}), VIDEO, "2.5 to 1.0").spans == (Span(start=1.0, end=2.5),)
    prompt = '{"boxes": [0, 0, 100, 100], "positive_points": [[50, 50]], "negative_points": [[900, 900]], "time": 2.2}'
    shapes = answer_marks(target("segmentation", {}), VIDEO, prompt).shapes
    assert [(m.kind, m.frame, m.negative) for m in shapes] == [("box", 2, False), ("point", 2, False), ("point", 2, True)]
    for answer in (None, "nothing", "{"):
        for kind in ("bbox", "point", "action", "segmentation", "tracking", "spatio_temporal", "time_span", "highlight", "exact_text"):
            assert answer_marks(target(kind, {}), VIDEO, answer) == answer_marks(target("exact_text", {}), VIDEO, None)


def test_tracks_go_to_the_frames_that_their_unit_means():
    track = {"boxes": {"1": [0, 0, 100, 100], "2.4": [100, 0, 200, 100]}}
    gold = {"track": track["boxes"]}
    assert [m.frame for m in gold_marks(target("tracking", gold, unit="s"), VIDEO).shapes] == [1, 2]
    # Frames 0, 2, 4, 6 of those that the model saw are shown.
    later = {"track": {"2": [0, 0, 100, 100], "3": [0, 0, 100, 100]}}
    from_0, from_1 = (gold_marks(target("tracking", later, unit=unit), VIDEO) for unit in ("shown0", "shown1"))
    assert ([m.frame for m in from_0.shapes], from_0.problems) == ([1], ("gt.track: frame 3 is not among those shown",))
    assert ([m.frame for m in from_1.shapes], from_1.problems) == ([1], ("gt.track: frame 2 is not among those shown",))
    silent = gold_marks(target("tracking", gold), VIDEO)
    assert silent.shapes == ()
    assert "nothing says what its frames count; set meta.track_unit to one of s, shown0, shown1" in silent.problems[0]
    far = gold_marks(target("tracking", {"track": {"9": [0, 0, 100, 100]}}, unit="s"), VIDEO)
    assert (far.shapes, far.problems) == ((), ("gt.track: no frame was shown near 9 s",))


def test_a_tube_has_a_span_and_boxes():
    made = target("spatio_temporal", {"tube": {"time": [1.0, 2.0], "boxes": {"1": [0, 0, 500, 500]}}}, unit="s")
    marks = gold_marks(made, VIDEO)
    assert marks.spans == (Span(start=1.0, end=2.0),)
    assert marks.shapes == (Mark(kind="box", points=((0, 0), (50, 50)), frame=1),)
    said = answer_marks(made, VIDEO, '{"time": [3, 2]}')
    assert (said.spans, said.shapes) == ((Span(start=2.0, end=3.0),), ())


def test_highlights_are_their_clips_and_their_weight_is_the_saliency():
    made = target("highlight", {"highlights": [[2.5, 4.0], [5.0, 1.0]]}, frame=None)
    assert gold_marks(made, VIDEO).spans == (Span(start=2.0, end=4.0, weight=1.0), Span(start=4.0, end=6.0, weight=0.25))
    short = target("highlight", {"highlights": [[2.5, 4.0]], "clip_seconds": 1.0}, frame=None)
    assert answer_marks(short, VIDEO, '{"highlights": [[3.2, 2]]}').spans == (Span(start=3.0, end=4.0, weight=1.0),)


def test_what_lies_outside_or_has_no_area_is_drawn_as_such():
    marks = answer_marks(target("bbox", {}), STILL, '{"boxes": [[-100, 500, 2000, 700], [300, 300, 200, 400]]}')
    assert marks.shapes == (
        Mark(kind="box", points=((0, 50), (100, 70)), odd=True),
        Mark(kind="box", points=((20, 30), (30, 40)), odd=True),
    )
    assert marks.problems == (
        "answer: [-100, 500, 2000, 700] reaches outside of the picture (1000 x 1000, norm1000)",
        "answer: [300, 300, 200, 400] has no area as it was given; x1 < x2 and y1 < y2",
    )
    assert answer_marks(target("bbox", {}), STILL, "[0, 0, 1001, 1000]").problems == ()  # a rounding error


def test_polygons_and_boxes_of_thoughts():
    rings = gold_marks(target("segmentation", {"polygons": [[[0, 0], [100, 0], [0, 100]], [[0, 0], [1, 1]]]}), STILL)
    assert rings.shapes == (Mark(kind="polygon", points=((0, 0), (10, 0), (0, 10))),)
    assert rings.problems == ("gt.polygons[1]: cannot be read, so it is not drawn",)
    spatial = target("exact_text", {"objects": {"red square": [0, 0, 500, 500]}})
    assert gold_marks(spatial, STILL).shapes == (Mark(kind="box", points=((0, 0), (50, 50))),)
    thought = "The red square is at <bbox>[100,0,600,500]</bbox>. So the red square is left of the grey circle."
    assert answer_marks(spatial, STILL, "yes", thought).shapes == (Mark(kind="box", points=((10, 0), (60, 50))),)
    assert answer_marks(target("exact_text", {}), STILL, "yes", thought).shapes == ()


@pytest.mark.parametrize(
    "gt",
    [
        {"boxes": 3},
        {"boxes": [[1, 2, 3]]},
        {"points": [["a", 1]]},
        {"time": "soon"},
        {"action": "click"},
        {"track": [1]},
        {"tube": 4},
        {"segmentation": {"boxes": [1]}},
        {"highlights": [[1]]},
        {"objects": "x"},
        {"mask": {"size": [2, 2], "counts": [9]}},
        {"mask": 3},
    ],
)
def test_damaged_truth_is_told_and_nothing_is_drawn(gt):
    marks = gold_marks(target("exact_text", gt, unit="s"), VIDEO)
    assert (marks.shapes, marks.spans) == ((), ())
    assert len(marks.problems) == 1
    assert next(iter(gt)) in marks.problems[0]


def test_only_what_can_be_drawn_is_kept_of_the_truth():
    made = target_of(sample("a", "bbox", {"boxes": [[0, 0, 1, 1]], "saliency": {"x": 1}, "points": None}))
    assert dict(made.gt) == {"boxes": [[0, 0, 1, 1]]}


@given(st.lists(st.booleans(), min_size=1, max_size=120), st.integers(1, 12))
def test_a_mask_is_filled_by_its_rectangles(values, width):
    height = -(-len(values) // width)
    mask = np.zeros(height * width, dtype=bool)
    mask[: len(values)] = values
    mask = mask.reshape(height, width)
    corners = mask_rectangles(mask)
    drawn = np.zeros((height, width), dtype=int)
    for (x1, y1), (x2, y2) in zip(corners[::2], corners[1::2], strict=True):
        rows, columns = (slice(round(a * n / 100), round(b * n / 100)) for a, b, n in ((y1, y2, height), (x1, x2, width)))
        drawn[rows, columns] += 1
    np.testing.assert_array_equal(drawn, mask.astype(int))


def test_a_large_mask_is_drawn_coarsely_and_in_place():
    mask = np.zeros((1000, 2000), dtype=bool)
    mask[:500, 1000:] = True
    assert mask_rectangles(mask) == (pytest.approx((50.0, 0.0)), pytest.approx((100.0, 50.0)))
    assert MASK_SIDE < 1000
    runs = {"size": [2, 2], "counts": [2, 2]}  # columns first: the right half
    assert mask_rectangles(decode_mask(runs)) == ((50.0, 0.0), (100.0, 100.0))
    assert gold_marks(target("point", {"mask": runs}, frame=None), STILL).shapes[0].kind == "mask"
