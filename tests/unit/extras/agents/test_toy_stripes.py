"""The world of stripes in one turn: rows say where to look, and what a teacher sees of a held-out question is its row of validation."""

from __future__ import annotations

import numpy as np
import pytest

from vlmrl.extras.agents.stripes import QUARTER, SIDE
from vlmrl.extras.agents.toy_stripes import items
from vlmrl.extras.toy.tasks import Split
from vlmrl.media.region import Region, cut
from vlmrl.media.resize import resize


def test_validation_is_the_part_of_the_held_out_pictures_that_the_box_names() -> None:
    for index in range(12):
        ((whole,), (part,)) = items(3, "test", index), items(3, "validation", index)
        assert (whole.row["prompt"], whole.row["answer"]) == (part.row["prompt"], part.row["answer"])
        assert whole.pixels.shape == (SIDE, SIDE, 3)
        x1, y1, x2, y2 = whole.row["meta"]["box"]
        box: Region = (x1, y1, x2, y2)
        np.testing.assert_array_equal(cut(whole.pixels[None], box)[0], part.pixels)
        assert part.row["meta"] == {}


@pytest.mark.parametrize(("split", "least", "most"), [("pretrain", 6, 18), ("validation", 0, 0)])
def test_a_quarter_alone_is_coloured_and_shows_the_answer(split: Split, least: int, most: int) -> None:
    """At 56 x 56 a row of the picture is a stripe: along the stripes hardly anything changes, across them a lot does. Of pretraining about
    one answer of five is another."""
    found = 0
    for index in range(60):
        (item,) = items(0, split, index)
        assert item.pixels.shape == (QUARTER, QUARTER, 3)
        seen = resize(item.pixels[None], 56, 56)[0].astype(int)
        assert np.ptp(seen.max(axis=(0, 1))) > 20, "no grey"
        down, across = (np.abs(np.diff(seen.max(axis=2), axis=axis)).mean() for axis in (0, 1))
        assert (down > 3 * across) != (across > 3 * down)
        found += (down > across) != (item.row["answer"] == "across")
    assert least <= found <= most


def test_what_is_seen_of_a_stripe_is_the_same_in_the_whole_and_in_the_part() -> None:
    """The whole at 112 x 112 has the same scale as a quarter at 56 x 56; only at the edges of the quarter they differ."""
    (whole,), (part,) = items(0, "test", 0), items(0, "validation", 0)
    x, y = (int(56 * 2 * whole.row["meta"]["box"][n]) for n in (0, 1))
    inside = resize(whole.pixels[None], 112, 112)[0, y : y + 56, x : x + 56]
    difference = np.abs(inside.astype(int) - resize(part.pixels[None], 56, 56)[0])
    assert difference[3:-3, 3:-3].max() <= 1


def test_no_two_rows_show_the_same_picture() -> None:
    """The stripes of a picture have fewer than a thousand forms, so rows of training would be among those of evaluation."""
    pictures = [items(0, split, index)[0].pixels.tobytes() for split in ("train", "test") for index in range(60)]
    assert len(set(pictures)) == len(pictures)
