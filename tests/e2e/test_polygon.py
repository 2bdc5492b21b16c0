"""The example of an answer type from outside the package, in every command that reads rows: check, train, eval, compare and report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support import runs
from tests.support.command import vlmrl

PLUGIN = "examples.polygon"
SQUARE = [(0, 0), (10, 0), (10, 10), (0, 10)]
BOW_TIE = [(0, 0), (10, 10), (10, 0), (0, 10)]
NOTCHED = [(0, 0), (10, 0), (10, 10), (5, 5), (0, 10)]


@pytest.mark.parametrize(
    ("a", "b", "iou"),
    [
        (SQUARE, SQUARE, 1.0),
        (SQUARE, [(x + 5, y) for x, y in SQUARE], 1 / 3),
        (SQUARE, SQUARE[::-1], 1.0),
        (SQUARE, [(x + 10, y) for x, y in SQUARE], 0.0),
        (SQUARE, [(x + 11, y) for x, y in SQUARE], 0.0),
        (SQUARE, [(0, 0), (10, 0), (0, 10)], 0.5),
        (SQUARE, NOTCHED, 0.75),
        (SQUARE, BOW_TIE, 0.5),
        ([(0, 0), (10, 0), (0, 10)], [(10, 10), (10, 0), (0, 10)], 0.0),
        ([(0, 5), (5, 0), (10, 5), (5, 10)], SQUARE, 0.5),
        ([(0, 0), (10, 10), (5, 5)], [(0, 0), (10, 10), (5, 5)], 0.0),
    ],
)
def test_iou_by_hand(a, b, iou) -> None:
    from examples.polygon import polygon_iou

    assert polygon_iou(a, b) == pytest.approx(iou, abs=1e-12)
    assert polygon_iou(b, a) == pytest.approx(iou, abs=1e-12)


def inside(ring: list[tuple[float, float]], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Even-odd rule at points, by crossings of a ray to the right."""
    out = np.zeros_like(x, dtype=bool)
    for (x1, y1), (x2, y2) in zip(ring, [*ring[1:], ring[0]], strict=True):
        spans = (y1 > y) != (y2 > y)
        out ^= spans & (x < x1 + (y - y1) / ((y2 - y1) or 1) * (x2 - x1))
    return out


corner = st.tuples(st.integers(0, 12), st.integers(0, 12))
ring = st.lists(corner, min_size=3, max_size=8)


@settings(max_examples=40, deadline=None)
@given(ring, ring)
def test_iou_agrees_with_counting_points(a, b) -> None:
    from examples.polygon import polygon_iou

    side = (np.arange(240) + 0.37) * 12 / 240
    x, y = np.meshgrid(side, side)
    in_a, in_b = inside(a, x, y), inside(b, x, y)
    either = int((in_a | in_b).sum())
    exact = polygon_iou(a, b)
    assert 0 <= exact <= 1
    assert exact == pytest.approx(int((in_a & in_b).sum()) / either if either else exact, abs=0.03 + 600 / max(either, 1))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, rows in the shape of LabelMe, and rows of our own schema."""
    root = tmp_path_factory.mktemp("polygons")
    theirs, ours = [], []
    for n in range(6):
        Image.fromarray(np.random.default_rng(n).integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(root / f"{n}.png")
        shape = {"shape_type": "polygon", "points": [[8, 6], [40 + n, 6], [20, 48]]}
        theirs.append({"imagePath": f"{n}.png", "imageWidth": 80, "imageHeight": 60, "label": "sail", "shapes": [shape]})
        gt = {"polygon": [[100, 100], [500 + n, 100], [250, 800]]}
        common = {"id": f"p{n}", "task": "outline", "answer_type": "polygon", "image": f"{n}.png", "prompt": "Outline the kite."}
        ours.append(common | {"gt": gt, "meta": {"frame": "norm1000"}})
    write(root / "labelme.jsonl", theirs)
    write(root / "test.jsonl", ours)
    return root


@pytest.fixture(scope="module")
def recipe(data: Path, tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A supervised stage and a GRPO stage whose reward is the score of the answer type."""
    folder = tmp_path_factory.mktemp("recipe")
    config = runs.small_config(tiny_files[0], data, folder / "runs", rewards=[{"name": "answer_score"}, {"name": "format", "weight": 0.1}])
    for stage in config["stages"]:
        stage |= {"source": {"path": "labelme.jsonl"}, "steps": 2}
    config["eval"] |= {"source": {"path": "test.jsonl"}, "every": None, "limit": None}
    config["plugins"] = [PLUGIN]
    (folder / "recipe.yaml").write_text(json.dumps(config))
    return folder / "recipe.yaml"


def test_check_reads_rows_of_another_shape_and_draws_them(recipe: Path) -> None:
    page = recipe.with_name("check.html")
    done = vlmrl("check", str(recipe), "--html", str(page))
    assert done.returncode == 0, done.stderr
    assert "data: ok" in done.stdout
    html = page.read_text(encoding="utf-8")
    assert "Outline the sail." in html
    assert re.search(r'"kind": ?"polygon"', html), "the page draws what its document says"
    assert "not drawn" not in html


def test_without_the_plugin_every_wrong_name_is_told_at_once(recipe: Path) -> None:
    config = json.loads(recipe.read_text()) | {"plugins": []}
    config["stages"][0]["source"] |= {"answer_type": "polygn", "adapter": "labelme"}
    other = recipe.with_name("bare.yaml")
    other.write_text(json.dumps(config))
    done = vlmrl("check", str(other), "--no-data")
    assert done.returncode != 0
    assert "stages.sft.source.answer_type: unknown answer type 'polygn'" in done.stderr
    assert "stages.sft.source.adapter: unknown adapter 'labelme'" in done.stderr


def test_train_with_the_score_as_reward_and_write_the_report_again(recipe: Path) -> None:
    done = vlmrl("train", str(recipe))
    assert done.returncode == 0, done.stderr
    run = recipe.parent / "runs" / "small"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("eval/polygon_iou" in line or any("polygon_iou" in key for key in line) for line in lines)
    (run / "report.html").unlink()
    again = vlmrl("view", str(run), "--save", str(run))
    assert again.returncode == 0, again.stderr
    assert "polygon IoU" in (run / "report.html").read_text(encoding="utf-8")


SUITE = """
id: outlines
version: 1
plugins: [examples.polygon]
tasks:
  - {id: outline, source: test.jsonl, answer_format: answer_only, answer_type: polygon, frame: norm1000, max_new_tokens: 8,
     media: {min_pixels: 3136, max_pixels: 4704}}
"""


def test_eval_compare_and_their_pages(data: Path, tiny_files: tuple[Path, Path], tmp_path: Path) -> None:
    suite = tmp_path / "outlines.yaml"
    suite.write_text(SUITE)
    common = ["eval", str(tiny_files[0]), "--suite", str(suite), "--data-root", str(data), "--device", "cpu"]
    a, b = tmp_path / "a", tmp_path / "b"
    for out in (a, b):
        done = vlmrl(*common, "--out", str(out))
        assert done.returncode == 0, done.stderr
    assert json.loads((a / "summary.json").read_text())["tasks"]["outline"]["metrics"]["polygon_iou"]["mean"] == 0

    # the second model answers right: its texts are replaced and scored again
    golds = {row["id"]: row["gt"] for row in map(json.loads, (data / "test.jsonl").read_text().splitlines())}
    records = [json.loads(line) for line in (b / "outline.jsonl").read_text().splitlines()]
    write(b / "outline.jsonl", [r | {"text": f"<answer>{json.dumps(golds[r['sample_id']])}</answer>"} for r in records])
    done = vlmrl(*common, "--out", str(b), "--rescore")
    assert done.returncode == 0, done.stderr
    found = json.loads((b / "summary.json").read_text())["tasks"]["outline"]["metrics"]
    assert found["polygon_iou"]["mean"] == found["polygon_r@0.5"]["mean"] == found["parse_rate"]["mean"] == 1
    assert "polygon IoU" in (b / "results.md").read_text()
    html = (b / "report.html").read_text(encoding="utf-8")
    assert "polygon IoU" in html
    assert "not drawn" not in html

    unknown = vlmrl("compare", str(a), str(b))
    assert unknown.returncode != 0
    assert "unknown answer type 'polygon'" in unknown.stderr
    assert "--plugin MODULE" in unknown.stderr
    done = vlmrl("compare", str(a), str(b), "--plugin", PLUGIN, "--out", str(tmp_path / "ab"))
    assert done.returncode == 0, done.stderr
    assert "polygon IoU" in (tmp_path / "ab" / "comparison.md").read_text()
    assert "polygon IoU" in (tmp_path / "ab" / "comparison.html").read_text(encoding="utf-8")
    worse = vlmrl("compare", str(b), str(a), "--plugin", PLUGIN)
    assert worse.returncode == 1
    assert "regressed: outline" in worse.stdout


def test_gold_and_answer_are_drawn_as_outlines() -> None:
    from examples.polygon import Polygon
    from vlmrl.answers.base import ANSWER_TYPES
    from vlmrl.answers.marks import Mark, MarkedFrames
    from vlmrl.data.row import parse_row
    from vlmrl.errors import RowError
    from vlmrl.extras.pages.overlay import answer_marks, gold_marks, target_of

    assert isinstance(ANSWER_TYPES["polygon"], Polygon)
    row = {"id": "a", "task": "t", "answer_type": "polygon", "image": "a.png", "prompt": "Where?", "meta": {"frame": "norm1000"}}
    sample = parse_row(row | {"gt": {"polygon": [[0, 0], [500, 0], [0, 500]]}}, source="r:1", media_root=".")
    assert sample.answer == '{"polygon": [[0, 0], [500, 0], [0, 500]]}'
    target = target_of(sample)
    gold = Mark(kind="polygon", points=((0.0, 0.0), (50.0, 0.0), (0.0, 50.0)))
    assert gold_marks(target, MarkedFrames()).shapes == (gold,)
    assert answer_marks(target, MarkedFrames(), sample.answer).shapes == (gold,)
    assert answer_marks(target, MarkedFrames(), '{"polygon": [[0, 0], [1, 1]]}').shapes == ()
    refused = [([[0, 0], [1, 1]], "at least 3"), ([[0, 0], [1, 1], [2, 2]], "no area"), ("x", "must be a list"), (None, "missing")]
    for polygon, told in refused:
        with pytest.raises(RowError, match=told):
            parse_row(row | {"gt": {"polygon": polygon}}, source="r:1", media_root=".")
