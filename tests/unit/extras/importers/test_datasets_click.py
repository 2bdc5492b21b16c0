"""data/: the sets of clicks (GUI-R1-3K, UI-R1-3B-Train), and elements to click as points in pixels of what the model sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import vlmrl.answers  # noqa: F401 (registers them)
from tests.support.builders import group
from tests.support.samples import load_dataset, unpack
from tests.support.standins import image_bytes
from vlmrl.answers.point import pointing_score
from vlmrl.data.row import parse_row
from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.prepare.gui_rows import FORMS, element_row, seen_size
from vlmrl.extras.importers.prepare.prepare import prepare
from vlmrl.protocols import RewardContext
from vlmrl.rewards.points import click

DATA = Path(__file__).resolve().parents[4] / "data"
POINT = "point-1003520"


def prepared(name: str, tmp_path: Path, split: str, **options: str) -> tuple[list[dict[str, Any]], str]:
    """Rows of the sample, and what the preparation says."""
    root, out = tmp_path / "download", tmp_path / "rows"
    if not root.exists():
        unpack(DATA / name, root)
    said = prepare(load_dataset(DATA / name), root, out, split, allow_partial=True, **options)
    return [json.loads(line) for line in (out / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()], said


def test_clicks_with_a_box_are_taken_of_gui_r1(tmp_path: Path) -> None:
    rows, said = prepared("gui_r1", tmp_path, "train")
    assert [row["meta"]["official"] for row in rows] == ["7001", "7004"]
    assert [row["gt"]["action"]["box"] for row in rows] == [[250, 500, 750, 625], [0, 0, 100, 50]]
    assert "1 (another action than a click)" in said
    assert "1 (a click with a point, without a box)" in said
    assert "1 (a box without area, or an empty text)" in said
    assert (tmp_path / "rows/media" / rows[0]["image"]).is_file()


def test_points_of_gui_r1_are_in_pixels_of_what_is_seen(tmp_path: Path) -> None:
    rows, _ = prepared("gui_r1", tmp_path, "train", form=POINT)
    first = rows[0]
    assert first["meta"]["screen"] == [64, 48]
    assert first["meta"]["size"] == [56, 56] == list(seen_size((64, 48), 1003520))
    assert first["meta"]["frame"] == "pixel"
    assert first["prompt"] == "click the UI element Timetable"
    assert first["gt"] == {"boxes": [[14, 28, 42, 35]]}
    assert first["answer"] == "[28, 32]"


def test_another_release_of_gui_r1_is_named(tmp_path: Path) -> None:
    record = {"image": {"bytes": image_bytes("a.png")}, "gt_action": "click", "instruction": "x", "id": "1", "task_type": "low"}
    for found, message in (({"gt_bbox": [10.0, 20.0, 30.0, 40.0]}, "not in shares of the sides"), ({}, "'gt_bbox' is missing")):
        parquet.write_table(pa.Table.from_pylist([record | found]), tmp_path / "train.parquet")
        with pytest.raises(RowError, match=message):
            list(load_dataset(DATA / "gui_r1").rows(tmp_path, "train"))


def test_ui_r1_boxes_are_in_pixels_of_the_screenshot(tmp_path: Path) -> None:
    rows, said = prepared("ui_r1", tmp_path, "train")
    assert [row["gt"]["action"]["box"] for row in rows] == [[250, 200, 500, 300], [937.5, 916.67, 1000, 1000]]
    assert "1 (another action than a click)" in said
    assert said.endswith(str(tmp_path / "download"))


@pytest.mark.parametrize("name", ["screenspot", "screenspot_v2", "screenspot_pro", "ui_r1"])
def test_both_forms_ask_for_the_same_element(name: str, tmp_path: Path) -> None:
    split = "train" if name == "ui_r1" else "test"
    actions, _ = prepared(name, tmp_path, split)
    points, _ = prepared(name, tmp_path, split, form=POINT)
    for one, other in zip(actions, points, strict=True):
        assert other["answer_type"] == "point"
        assert f"Click on the element for: {other['prompt']}\n" in one["prompt"]
        assert other["meta"]["screen"] == one["meta"]["size"]
        width, height = other["meta"]["size"]
        assert width % 28 == height % 28 == 0
        assert width * height <= 1003520
        sides = [width, height, width, height]
        (box,) = other["gt"]["boxes"]
        assert box == pytest.approx([v * side / 1000 for v, side in zip(one["gt"]["action"]["box"], sides, strict=True)], abs=0.01)
        sample = parse_row(other, source="x", media_root=".")
        assert pointing_score(sample.answer, sample) == 1
        assert click(group([f"<answer>{sample.answer}</answer>"], sample), RewardContext()) == [1]


def test_the_budget_is_that_of_the_form() -> None:
    row = element_row(
        "point-4014080", id="a", task="t", image="a.png", instruction=" the bell ", box=[0, 0, 500, 1000], size=(3840, 2160), meta={}
    )
    width, height = row["meta"]["size"]
    assert 0.97 * 4014080 < width * height <= 4014080
    assert row["gt"]["boxes"] == [[0, 0, width / 2, height]]
    with pytest.raises(ValueError, match="form 'points' is not known; known: action, point-1003520"):
        element_row("points", id="a", task="t", image="a.png", instruction="x", box=[0, 0, 1, 1], size=(10, 10), meta={})


def test_an_element_thinner_than_a_pixel_is_answered_within_it() -> None:
    row = element_row(POINT, id="a", task="t", image="a.png", instruction="x", box=[500.2, 0, 500.4, 1000], size=(1008, 560), meta={})
    sample = parse_row(row, source="x", media_root=".")
    assert pointing_score(sample.answer, sample) == 1


def test_forms_begin_with_the_rows_that_the_suites_ask() -> None:
    assert FORMS[0] == "action"
    for name in ("screenspot", "screenspot_v2", "screenspot_pro", "gui_r1", "ui_r1"):
        assert load_dataset(DATA / name).options == {"form": FORMS}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name, file in (("gui_r1", r"train\.parquet"), ("ui_r1", r"train\.json")):
        with pytest.raises(DataError, match=file):
            list(load_dataset(DATA / name).rows(tmp_path, "train"))
