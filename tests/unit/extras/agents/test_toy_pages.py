"""Generated pages: what a row asks for lies where it says, pages and splits by hand, and the tiny model to whom white is nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.extras.agents.toy_pages import BAND, COLORS, HEIGHT, PAGES, PAGES_OF, WHERE, WIDTH, Page, font, items
from vlmrl.extras.agents.worlds.miniwob import ONE_CLICK
from vlmrl.extras.toy.kinds import tokenizer_corpus
from vlmrl.extras.toy.model import PAPER_POSITIONS, build_model
from vlmrl.policy.load import load_policy, load_processor
from vlmrl.rng import generator

seeds = st.integers(0, 2**40)
YELLOW = np.array(COLORS["yellow"])


def drawn(seed: int, name: str) -> tuple[Page, str, tuple[int, int, int, int]]:
    page = Page(generator(seed, "test"))
    asked, box = PAGES_OF[name](page)
    page.task(asked)
    return page, asked, box


@given(seeds)
def test_the_middle_has_the_colour_that_is_asked_for(seed: int) -> None:
    page, asked, (x, y, width, height) = drawn(seed, "click-color")
    name = asked.removeprefix("Click on the ").removesuffix(" colored box.")
    pixels = np.asarray(page.image)
    assert (pixels[y + 1 : y + height - 1, x + 1 : x + width - 1] == COLORS[name]).all()
    assert (pixels[y, x : x + width] == 0).all(), "a black edge"


@given(seeds)
def test_the_button_with_the_word_is_the_one(seed: int) -> None:
    """What is dark in the box is as large as the word that is asked for, in one of the sizes of letters."""
    page, asked, box = drawn(seed, "click-test-2")
    word = asked.removeprefix("Click button ").removesuffix(".")
    assert page.taken[0] == box
    x, y, width, height = box
    dark = np.asarray(page.image)[y + 1 : y + height - 1, x + 1 : x + width - 1].min(2) < 100
    rows, columns = np.flatnonzero(dark.any(1)), np.flatnonzero(dark.any(0))
    wide = [font(size).getbbox(word, anchor="mm") for size in (12, 13, 14)]
    sizes = {(right - left, bottom - top) for left, top, right, bottom in wide}
    found = (columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1)
    assert any(abs(found[0] - w) <= 3 and abs(found[1] - h) <= 3 for w, h in sizes)


@pytest.mark.parametrize("name", PAGES_OF)
@given(seeds)
def test_boxes_are_below_the_band(name: str, seed: int) -> None:
    page, _, (x, y, width, height) = drawn(seed, name)
    assert 0 <= x < x + width <= WIDTH
    assert BAND <= y < y + height <= HEIGHT
    pixels = np.asarray(page.image)
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert (pixels[BAND - 5 : BAND] == YELLOW).all()
    assert (pixels[BAND:] == 255).all(2).mean() > 0.3, "mostly white"


def test_rows() -> None:
    """Those that teach have any page, with more of those that have much to tell apart; the others have each as often, and name it."""
    for split in ("train", "test"):
        rows = [items(7, split, index)[0].row for index in range(10)]
        assert [row["meta"]["environment"]["page"] for row in rows] == [*PAGES_OF] * 2
    rows = [items(7, "pretrain", index)[0].row for index in range(70)]
    counts = {name: sum(row["meta"]["category"] == name for row in rows) for name in PAGES_OF}
    assert min(counts.values()) > 0
    assert counts["click-color"] + counts["click-test-2"] > 30
    listed = [row for row in rows if row["prompt"] == f"Task: {WHERE}"]
    assert 10 < len(listed) < 40
    for row in rows:
        for x, y in json.loads("[" + re.sub(r"\] [^\[]*\[", "], [", row["answer"][row["answer"].index("[") :].rstrip("}")) + "]"):
            assert 0 < x < 1000
            assert 1000 * BAND / HEIGHT < y < 1000
    assert items(7, "pretrain", 3)[0].row == items(7, "pretrain", 3)[0].row != items(8, "pretrain", 3)[0].row


@given(seeds)
def test_what_is_where(seed: int) -> None:
    """Each name stands before the middle of its box, whose colour it says."""
    found = (items(seed, "pretrain", index)[0] for index in range(1000))
    item = next(one for one in found if one.row["prompt"] == f"Task: {WHERE}" and one.row["meta"]["category"] == "click-color")
    said = re.findall(r"(\w+) \[(\d+), (\d+)\]", item.row["answer"])
    assert 1 <= len(said) <= 5
    assert " ".join(f"{name} [{x}, {y}]" for name, x, y in said) == item.row["answer"]
    for name, x, y in said:
        assert tuple(item.pixels[int(y) * HEIGHT // 1000, int(x) * WIDTH // 1000]) == COLORS[name]


def test_the_pages_are_ones_that_the_environment_can_solve() -> None:
    assert set(PAGES_OF) <= set(ONE_CLICK)


def test_white_is_nothing_to_its_model(tmp_path: Path) -> None:
    build_model(tmp_path / "m", seed=0, corpus=tokenizer_corpus("pages"), **PAGES.model)
    bundle = load_processor(str(tmp_path / "m"))
    assert set(bundle.scales) == {"image", "video"}, "patches are kept as bytes"
    white = np.full((1, 224, 160, 3), 255, dtype=np.uint8)
    assert not bundle.pixel_values(bundle.patchify(white, "image")[0], "image").any()
    assert bundle.pixel_values(bundle.patchify(white // 255, "image")[0], "image").mean() == pytest.approx(-2.0, abs=0.02)
    weights = load_policy(str(tmp_path / "m"), bundle, device="cpu").model.model.visual.pos_embed.weight
    assert float(weights.std()) == pytest.approx(PAPER_POSITIONS, rel=0.05)
    assert torch.isfinite(weights).all()
