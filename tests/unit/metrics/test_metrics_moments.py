"""metrics.moments: the printed vectors of QVHighlights, its text forms, and the highlight reward by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.moments import (
    LEVELS,
    HighlightQuery,
    clip_of,
    clip_scores,
    f2,
    highlight_average_precision,
    highlight_hit,
    highlight_score,
    highlights_of,
    moment_average_precision,
    moment_map,
    parse_highlights,
)

GOLD = [(4.0, 10.0), (20.0, 26.0)]
PRED = [(4.0, 9.0), (18.0, 26.0), (0.0, 30.0)]


def test_moment_map_vectors() -> None:
    """The official example: AP 1 up to IoU 0.75, 0.5 at 0.8, then 0."""
    steps = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
    assert [moment_average_precision(GOLD, PRED, t) for t in steps] == pytest.approx([1] * 6 + [0.5] + [0] * 3)
    assert moment_map(GOLD, PRED) == pytest.approx(0.65)
    assert moment_map(GOLD, [PRED[1], PRED[0], PRED[2]]) == pytest.approx(0.625)
    assert moment_map(GOLD, [(0.0, 30.0)]) == moment_map(GOLD, []) == 0
    assert moment_map(GOLD, [GOLD[0]]) == 0.5  # one of two moments


def test_a_moment_is_found_once_and_ten_predictions_count() -> None:
    twice = [(4.0, 10.0), (4.0, 10.0), (20.0, 26.0)]
    assert moment_average_precision(GOLD, twice, 0.5) == pytest.approx((1 + 2 / 3) / 2)
    wrong = [(100.0, 101.0)] * 10
    assert moment_average_precision(GOLD, [*wrong[1:], (4, 10)], 0.5) == pytest.approx(0.05)
    assert moment_average_precision(GOLD, [*wrong, (4, 10)], 0.5) == 0  # the eleventh


def test_moments_need_ground_truth() -> None:
    with pytest.raises(ValueError, match="without true moments"):
        moment_average_precision([], PRED, 0.5)


CLIPS = [2, 3, 4, 10, 11, 12]
SALIENCY = [[4, 4, 2], [3, 4, 2], [2, 2, 3], [2, 2, 2], [0, 1, 3], [4, 4, 4]]
SCORES = [0, 0, 0.5, 0.9, 0.4, 0, 0, 0, 0, 0, 0.2, 0.1, 0.8, 0, 0]


def highlights(scores: list[float]) -> HighlightQuery:
    return HighlightQuery(scores=scores, clips=CLIPS, saliency=SALIENCY)


@pytest.mark.parametrize(
    ("level", "hit", "per_annotator"), [("fair", 1, [1, 1, 1]), ("good", 1, [1, 1, 0.5]), ("very_good", 1, [2 / 3, 1, 0.5])]
)
def test_highlight_detection_vectors(level: str, hit: float, per_annotator: list[float]) -> None:
    assert highlight_hit(highlights(SCORES), level) == hit
    assert highlight_average_precision(highlights(SCORES), level) == pytest.approx(per_annotator)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_average_precision_by_its_definition(clips: list[tuple[int, bool]]) -> None:
    """Best precision at or below each threshold, averaged over the thresholds that raise the recall."""
    scores, true = np.array([s for s, _ in clips]), np.array([t for _, t in clips])
    query = HighlightQuery(scores=scores.tolist(), clips=list(range(len(clips))), saliency=[[4 * int(t)] for t in true])
    got = highlight_average_precision(query)[0]
    if true.all() or not true.any():
        assert got == float(true.all())
        return
    points = [(int(true[scores >= t].sum()), float(true[scores >= t].mean())) for t in sorted(set(scores.tolist()), reverse=True)]
    reached = [right for i, (right, _) in enumerate(points) if right > (points[i - 1][0] if i else 0)]
    assert got == pytest.approx(np.mean([max(p for right, p in points if right >= r) for r in reached]))


def test_highlight_queries_must_fit_together() -> None:
    for query, message in [
        (HighlightQuery(scores=[1], clips=[0, 0], saliency=[[4]]), "2 clips but 1"),
        (HighlightQuery(scores=[1], clips=[], saliency=[]), "no relevant clips"),
        (HighlightQuery(scores=[1], clips=[1], saliency=[[4]]), "with 1 clips"),
        (HighlightQuery(scores=[1], clips=[-1], saliency=[[4]]), "with 1 clips"),
    ]:
        with pytest.raises(ValueError, match=message):
            highlight_hit(query)
    assert LEVELS == {"fair": 2, "good": 3, "very_good": 4}


def test_clips_of_times() -> None:
    assert [clip_of(t) for t in (0, 1, 1.99, 2, 3, 4)] == [0, 0, 0, 1, 1, 2]
    assert clip_scores([(1, 2.0), (0.5, 3.0), (5, 1.0), (99, 4.0)], 7.0) == [3.0, 0, 1.0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"highlights": [[1.0, 4.5], [3, 2]]}', [(1, 4.5), (3, 2)]),
        ("The timestamps are 1.0, 3 seconds. Their scores are 4.5, 2.", [(1, 4.5), (3, 2)]),
        ("1, 3 seconds. scores 4.5", None),
        ("1, 3 seconds", None),
        ("scores: 1, 2", None),
        ('{"highlights": []}', None),
        ('{"highlights": [[1]]}', None),
        ('{"highlights": [[-1, 2]]}', None),
        ('{"highlights": [[1, NaN]]}', None),
        ('{"time": [1, 2]}', None),
        ("", None),
    ],
)
def test_reading_highlights(text: str, found: list[tuple[float, float]] | None) -> None:
    assert parse_highlights(text) == found


@given(st.text(alphabet='[]{},."highlgts 0123456789score', max_size=80))
def test_reading_never_fails(text: str) -> None:
    found = parse_highlights(text)
    assert found is None or (found and all(min(pair) >= 0 for pair in found))


TRUE = [(1.0, 4.0), (3.0, 2.0)]


def test_highlight_score_by_hand() -> None:
    assert highlight_score(TRUE, TRUE) == {"f2": 1.0, "wmse": 0.0, "score": 1.0}
    # one of two clips, its saliency off by one: P 1, R 1/2; weights 16/20 and 4/20 on errors 1 and 4
    found = highlight_score([(0.5, 3.0)], TRUE)
    assert found["f2"] == pytest.approx(5 * 0.5 / (4 + 0.5))
    assert found["wmse"] == pytest.approx(0.8 * 1 + 0.2 * 4)
    assert found["score"] == pytest.approx(0.6 * 5 / 9 + 0.4 / 2.6)
    # a clip named again is superfluous, and its second saliency does not count
    found = highlight_score([(1.0, 4.0), (1.5, 0.0), (3.0, 2.0)], TRUE)
    assert (found["f2"], found["wmse"]) == (pytest.approx(5 * 2 / 3 / (4 * 2 / 3 + 1)), 0)
    assert highlight_score([], TRUE)["score"] == 0
    assert highlight_score([(50.0, 4.0)], TRUE)["f2"] == 0
    tiny = [(1.0, 5e-324)]
    assert highlight_score(tiny, tiny)["score"] == 1
    assert highlight_score(TRUE, TRUE, w_f2=3, w_saliency=0)["score"] == 1


def test_highlight_score_needs_sound_ground_truth() -> None:
    for gold in ([], [(1.0, 0.0)], [(1.0, 4.0), (1.5, 3.0)]):
        with pytest.raises(ValueError, match="true highlights"):
            highlight_score(TRUE, gold)
    with pytest.raises(ValueError, match="positive"):
        highlight_score(TRUE, TRUE, clip=0)
    with pytest.raises(ValueError, match="positive"):
        highlight_score(TRUE, TRUE, w_f2=0, w_saliency=0)


def test_f2_weighs_recall_more() -> None:
    assert f2(0, 0) == 0
    assert f2(1, 1) == 1
    assert f2(0.5, 1) == pytest.approx(2.5 / 3)
    assert f2(1, 0.5) == pytest.approx(2.5 / 4.5)


def test_json_highlights_are_lists() -> None:
    assert highlights_of([[1, 2]]) == [(1.0, 2.0)]
    assert highlights_of({"1": 2}) is None
