"""metrics.points: reading, masks (against pycocotools), similarity of point sets, and the segmentation score by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.boxes import Point
from vlmrl.metrics.points import (
    Segmentation,
    decode_mask,
    parse_points,
    parse_segmentation,
    points_of,
    segmentation_score,
    set_similarity,
    share_in_mask,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"points": [[1, 2], [3.5, 4]]}', [(1, 2), (3.5, 4)]),
        ('{"point": [1, 2]}', [(1, 2)]),
        ("[(1, 2), (3, 4)]", [(1, 2), (3, 4)]),
        ("It is at [10,20].", [(10, 20)]),
        ("(-1, 2)", [(-1, 2)]),
        ("[1, 2, 3, 4]", None),
        ("[1]", None),
        ('{"points": []}', None),
        ('{"points": [[1]]}', None),
        ('{"points": [[1, NaN]]}', None),
        ('{"point_2d": [1, 2]}', [(1, 2)]),
        ("left", None),
    ],
)
def test_reading_points(text: str, found: list[Point] | None) -> None:
    assert parse_points(text) == found


def test_at_most_64_points() -> None:
    assert len(parse_points("[1, 2] " * 100) or []) == 64


@given(st.text(alphabet='[](){},." -0123456789points', max_size=80))
def test_reading_never_fails(text: str) -> None:
    found = parse_points(text)
    assert found is None or all(len(p) == 2 and all(map(math.isfinite, p)) for p in found)


def test_json_points() -> None:
    assert points_of([]) == ()
    assert points_of([[1, 2]]) == ((1.0, 2.0),)
    assert points_of([[1, 2], 3]) is None
    assert points_of("x") is None


def test_share_in_mask() -> None:
    mask = np.zeros((2, 3), dtype=bool)
    mask[0, 2] = mask[1, 0] = True  # x 2, y 0 and x 0, y 1
    assert share_in_mask([(2.0, 0.0), (2.99, 0.99)], mask) == 1
    assert share_in_mask([(0.5, 1.5), (0.5, 0.5)], mask) == 0.5
    assert share_in_mask([(3.0, 0.0), (-0.5, 1.0), (0.0, 2.0), (0.0, 1.0)], mask) == 0.25  # outside of the picture
    assert share_in_mask([], mask) == 0


def test_masks_by_hand() -> None:
    assert decode_mask({"size": [2, 3], "counts": [1, 1, 2, 2]}).tolist() == [[False, False, True], [True, False, True]]
    for mask in (
        {},
        {"size": [2], "counts": [2]},
        {"size": [1, 1], "counts": [0.5, 0.5]},
        {"size": [0, 1], "counts": []},
        {"size": [2**20, 2**20], "counts": [2**40]},
    ):
        with pytest.raises(ValueError, match="needs 'size'"):
            decode_mask(mask)
    with pytest.raises(ValueError, match="sum to 3, but size"):
        decode_mask({"size": [2, 2], "counts": [1, 2]})


def test_masks_agree_with_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(1)
    for height, width in ((1, 1), (7, 5), (3, 11)):
        flat = (rng.random(height * width) < 0.4).astype(int)
        counts = [0] if flat[0] else []
        counts += [len(list(run)) for _, run in itertools.groupby(flat.tolist())]
        mask = {"size": [height, width], "counts": counts}
        assert (decode_mask(mask) == coco.decode(coco.frPyObjects(mask, height, width)).astype(bool)).all()


points = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=3, max_size=3)


@given(points, points)
def test_similarity_by_all_permutations(pred: list[Point], gold: list[Point]) -> None:
    least = min(sum(math.dist(p, g) for p, g in zip(order, gold, strict=True)) for order in itertools.permutations(pred)) / 3
    assert set_similarity(pred, gold) == pytest.approx(math.exp(-(least**2) / 5000))
    assert set_similarity(gold, pred) == pytest.approx(set_similarity(pred[::-1], gold))


def test_similarity_edges() -> None:
    assert set_similarity([(0, 0)], [(30, 40)]) == pytest.approx(math.exp(-0.5))  # distance 50 is one sigma
    assert set_similarity([(0, 0)], [(30, 40)], sigma=100) == pytest.approx(math.exp(-0.125))
    assert set_similarity([(0, 0)], [(0, 0), (1, 1)]) == 0
    assert set_similarity([], []) == 1
    with pytest.raises(ValueError, match="sigma"):
        set_similarity([], [], sigma=0)


GOLD = Segmentation(box=(0, 0, 100, 100), positive=((10, 10), (50, 50), (90, 90)), negative=((200, 200), (300, 300), (400, 400)))


def changed(pred: Segmentation = GOLD, **changes: object) -> Segmentation:
    return Segmentation(**{k: changes.get(k, getattr(pred, k)) for k in ("box", "positive", "negative", "time")})  # type: ignore[arg-type]


def test_segmentation_of_a_picture() -> None:
    assert segmentation_score(GOLD, GOLD) == 1
    assert segmentation_score(changed(box=(0, 0, 100, 50)), GOLD) == pytest.approx(0.25 + 0.5)
    assert segmentation_score(changed(positive=((60, 10), (100, 50), (140, 90))), GOLD) == pytest.approx(0.75 + 0.25 * math.exp(-0.5))
    assert segmentation_score(changed(negative=((250, 200), (350, 300), (450, 400))), GOLD) == pytest.approx(0.75 + 0.25 * math.exp(-0.5))
    assert segmentation_score(changed(negative=()), GOLD) == 0
    assert segmentation_score(changed(time=3.0), GOLD) == 1  # a picture has no time


def test_segmentation_of_a_video() -> None:
    gold = changed(time=4.0)
    assert segmentation_score(gold, gold) == 1
    assert segmentation_score(changed(time=6.0), gold) == pytest.approx(0.7 + 0.3 * math.exp(-1))
    assert segmentation_score(changed(time=4.0, box=(0, 0, 100, 50)), gold) == pytest.approx(0.85)
    assert segmentation_score(changed(time=4.0, positive=((60, 10), (100, 50), (140, 90))), gold) == pytest.approx(
        0.8 + 0.2 * math.exp(-0.5)
    )
    assert segmentation_score(GOLD, gold) == 0


def test_reading_segmentations() -> None:
    text = '{"boxes": [0, 0, 9, 9], "positive_points": [[1, 1]], "negative_points": [], "time": 2}'
    assert parse_segmentation(text) == Segmentation(box=(0, 0, 9, 9), positive=((1, 1),), negative=(), time=2.0)
    assert parse_segmentation(text.replace(', "time": 2', "")) == Segmentation(box=(0, 0, 9, 9), positive=((1, 1),), negative=())
    for wrong in (("2}", '"2"}'), ("[[1, 1]]", "[1, 1]"), ("[0, 0, 9, 9]", "[[0, 0, 9, 9]]"), ('"negative_points": [], ', ""), ("{", "")):
        assert parse_segmentation(text.replace(*wrong)) is None
