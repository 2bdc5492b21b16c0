"""The best blind click by hand, and the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from benchmarks.learning import toy_pages
from benchmarks.learning.toy_pages import best_blind


def test_the_place_where_it_often_is() -> None:
    """One text; of four points the second is right on three of four problems of the first half, and on half of the second."""
    right = np.zeros((8, 2, 2), dtype=bool)
    right[[0, 2, 4, 1, 5], 0, 1] = True
    right[[6, 3, 7], 1, 0] = True
    assert best_blind(["Click."] * 8, right) == (2, 4)


def test_the_text_tells() -> None:
    """Each of two texts has its own point, as on the page of a grid."""
    texts = [("left", "right")[i // 2 % 2] for i in range(12)]
    right = np.zeros((12, 1, 2), dtype=bool)
    for i, text in enumerate(texts):
        right[i, 0, int(text == "right")] = True
    assert best_blind(texts, right) == (6, 6)


def test_a_text_for_each_problem_tells_nothing() -> None:
    """A point for each text fits the first half perfectly; on the second it is never right, and the common point is."""
    right = np.zeros((8, 1, 5), dtype=bool)
    right[:, 0, 0] = True
    right[[0, 2], 0, 0] = False
    right[[0, 2], 0, [1, 2]] = True
    assert best_blind([str(i) for i in range(8)], right) == (4, 4)


def test_the_table() -> None:
    kept = {name: {"click-test": (hits, 40)} for name, hits in (("base", 30), ("rl", 40), ("sft", 30), ("sft_rl", 30))} | {"minutes": 3.0}
    result = {"blind": {"click-test": (120, 200)}, "seeds": {"0": kept, "1": kept}}
    head, first, second = toy_pages.cells(result)
    assert head[0] == "page"
    assert first == ["`click-test`", "0", "0.60 [0.53, 0.67]", "0.75 [0.60, 0.86]", "1.00 [0.91, 1.00]", *["0.75 [0.60, 0.86]"] * 2]
    assert second[1] == "1"
    assert "40 of each page" in toy_pages.document(result, "command")


def test_a_stage_on_demonstrations_comes_first(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    recipe = yaml.safe_load(toy_pages.taught(tmp_path, tmp_path).read_text())
    first, second = recipe["stages"]
    assert (first["source"]["path"], first["answer_format"]) == (str(rows), second["answer_format"])
    assert [second] == yaml.safe_load(toy_pages.RECIPE.read_text())["stages"]
