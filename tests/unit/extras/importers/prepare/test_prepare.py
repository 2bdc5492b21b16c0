"""The shared part of dataset preparation: checks against the card, what is left out, units and frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import fs_ops
from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import (
    Dataset,
    Embedded,
    Skipped,
    grounding_prompt,
    in_frame,
    letter,
    lettered,
    main,
    official_counts,
    prepare,
    python_strings,
    time_span,
    xyxy,
)
from vlmrl.metrics.boxes import convert


def tiny(tmp_path: Path, records: list[Any], *, count: str = "2", unit: str = "") -> Dataset:
    (tmp_path / "card.md").write_text(f"| split | rows | source |\n|---|---|---|\n| a | {count} | here |\n")
    (tmp_path / "root").mkdir(exist_ok=True)
    return Dataset(folder=tmp_path, rows=lambda root, split: iter(records), splits=("a",), unit=unit)


def text_row(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "task": "t", "answer_type": "exact_text", "prompt": "Q?", "answer": "yes", **more}


def test_official_counts_reads_the_table(tmp_path: Path):
    card = tmp_path / "card.md"
    card.write_text(
        "| split | rows | x |\n|---|---|---|\n| train | 12,408 | a |\n| `val_L1` | not verified | b |\n| testA | 7 (people) | c |\n\n"
        "In 2024 there were | 5 |.\n"
    )
    assert official_counts(card) == {"train": 12408, "val_L1": None, "testA": 7}


def test_right_count_needs_no_flag_and_adds_the_source(tmp_path: Path):
    dataset = tiny(tmp_path, [text_row("1"), Skipped("2", "odd")])
    assert "2 records read, as the card says" in prepare(dataset, tmp_path / "root", tmp_path / "out", "a")
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "a.jsonl").read_text().splitlines()]
    assert row == {"source": tmp_path.name, **text_row("1")}
    assert json.loads((tmp_path / "out" / "a.skipped.jsonl").read_text()) == {"id": "2", "reason": "odd"}


def test_unlisted_records_count_but_are_not_listed(tmp_path: Path):
    dataset = tiny(tmp_path, [text_row("1"), Skipped("2", "other task", listed=False)])
    assert "left out: 1 (other task)" in prepare(dataset, tmp_path / "root", tmp_path / "out", "a")
    assert not (tmp_path / "out" / "a.skipped.jsonl").exists()


def test_distinct_units_are_counted(tmp_path: Path):
    records = [text_row("1", meta={"k": 7}), text_row("2", meta={"k": 7}), Skipped("3", "odd", unit=8)]
    assert "2 ks read, as the card says" in prepare(tiny(tmp_path, records, unit="k"), tmp_path / "root", tmp_path / "out", "a")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([text_row("1"), text_row("1")], r"1 id\(s\) occur more than once: 1"),
        ([text_row("1"), {**text_row("2"), "answer_type": "opne"}], "record '2' does not give a valid row: bad_value"),
        ([Skipped("1", "odd"), Skipped("2", "odd")], r"no row left for split 'a' .*2 \(odd\)"),
        ([text_row("1"), text_row("2", image="/etc/passwd")], "record '2' does not give a valid row: forbidden"),
        ([text_row(str(i), image=f"{i}.png") for i in range(2)], "2 of 2 media files are not below .*: 0.png, 1.png. Add them"),
    ],
)
def test_what_stops_a_preparation(tmp_path: Path, records: list[Any], message: str):
    with pytest.raises(DataError, match=message):
        prepare(tiny(tmp_path, records), tmp_path / "root", tmp_path / "out", "a")
    assert not (tmp_path / "out" / "a.jsonl").exists()


def test_allow_partial_lists_rows_that_are_not_valid(tmp_path: Path):
    dataset = tiny(tmp_path, [text_row("1"), text_row("2", prompt="a <|im_end|> b")])
    done = prepare(dataset, tmp_path / "root", tmp_path / "out", "a", allow_partial=True)
    assert "1 rows; left out: 1 (not a valid row)" in done
    listed = json.loads((tmp_path / "out" / "a.skipped.jsonl").read_text())
    assert listed["id"] == "2"
    assert "control_token" in listed["reason"]


def test_many_missing_names_are_counted(tmp_path: Path):
    records = [text_row(str(i), image=f"{i:02}.png") for i in range(13)]
    with pytest.raises(DataError, match=r"13 of 13 .* 09\.png and 3 more"):
        prepare(tiny(tmp_path, records, count="13"), tmp_path / "root", tmp_path / "out", "a")


def test_card_without_the_split(tmp_path: Path):
    dataset = tiny(tmp_path, [text_row("1")])
    (tmp_path / "card.md").write_text("nothing")
    with pytest.raises(DataError, match="no count for split 'a'"):
        prepare(dataset, tmp_path / "root", tmp_path / "out", "a")


def test_embedded_media_are_written_once(tmp_path: Path):
    records = [text_row(str(i), images=[Embedded("x/p.png", b"one"), Embedded(f"x/{i}.png", b"two")]) for i in range(2)]
    dataset = tiny(tmp_path, records)
    with fs_ops.record() as log:
        done = prepare(dataset, tmp_path / "root", tmp_path / "out", "a")
    assert done.endswith(f"media_root: {tmp_path / 'out' / 'media'}")
    assert sum(op.data == b"one" for op in log) == 1
    rows = [json.loads(line) for line in (tmp_path / "out" / "a.jsonl").read_text().splitlines()]
    assert [row["images"] for row in rows] == [["x/p.png", "x/0.png"], ["x/p.png", "x/1.png"]]
    assert (tmp_path / "out" / "media" / "x" / "1.png").read_bytes() == b"two"


def test_command_line_exits_with_the_code_of_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    dataset = tiny(tmp_path, [text_row("1")])
    with pytest.raises(SystemExit) as failed:
        main(dataset, [str(tmp_path / "root"), str(tmp_path / "out"), "--split", "a"])
    assert failed.value.code == DataError.exit_code
    assert "1 records read, but" in capsys.readouterr().err
    with pytest.raises(SystemExit) as done:
        main(dataset, [str(tmp_path / "root"), str(tmp_path / "out"), "--split", "a", "--allow-partial"])
    assert done.value.code == 0
    with pytest.raises(SystemExit) as absent:
        main(dataset, [str(tmp_path / "nowhere"), str(tmp_path / "out"), "--split", "a"])
    assert absent.value.code == DataError.exit_code
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("start", "end", "duration", "span"),
    [(1, 4, None, (1.0, 4.0)), (-2, 4, 3.5, (0.0, 3.5)), (5, 5, None, None), (9, 3, None, None), (12, 14, 12, None)],
)
def test_time_span(start: float, end: float, duration: float | None, span: tuple[float, float] | None):
    assert time_span(start, end, duration) == span


def test_boxes_by_hand():
    assert xyxy((10, 20, 30, 40)) == (10, 20, 40, 60)
    assert in_frame((10, 20, 40, 60), (100, 50), "pixel") == [10, 20, 40, 50]  # cut at the lower edge
    assert in_frame((10, 20, 40, 60), (100, 50), "norm1000") == [100, 400, 400, 1000]
    assert in_frame((120, 0, 130, 10), (100, 50), "pixel") is None
    with pytest.raises(ValueError, match="frame 'rel1' is not known"):
        in_frame((0, 0, 1, 1), (10, 10), "rel1")


@given(st.tuples(*[st.floats(0, 1) for _ in range(4)]), st.integers(1, 4000), st.integers(1, 4000))
def test_frames_agree_with_the_metrics(shares: tuple[float, ...], width: int, height: int):
    (x1, x2), (y1, y2) = sorted(shares[:2]), sorted(shares[2:])
    box = (x1 * width, y1 * height, x2 * width, y2 * height)
    relative = in_frame(box, (width, height), "norm1000")
    if relative is not None:
        assert relative == pytest.approx(convert(box, (width, height), source="pixel", target="norm1000"), abs=0.0051)


def test_letters():
    assert lettered(["x", " y "]) == ["A. x", "B. y"]
    assert letter(25) == "Z"
    with pytest.raises(DataError, match="no letter"):
        letter(26)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=5))
def test_python_strings_reads_what_repr_writes(values: list[str]):
    text = repr(values)
    if "\\U" not in text:  # beyond the basic plane repr writes characters as they are, unless they cannot be printed
        assert python_strings(text) == values


@pytest.mark.parametrize("text", ["", "['a'", "[1]", "['a', f()]", "['a' 'b']", "__import__('os')", "['a'] + ['b']"])
def test_python_strings_refuses_anything_else(text: str):
    with pytest.raises(DataError, match="not a list of texts"):
        python_strings(text)


def test_the_question_for_a_time_span_says_what_is_asked_for() -> None:
    """The facts of TempSamp-R1's prompt: the event in quotation marks, its precise period, seconds with two decimals, the example."""
    text = grounding_prompt("  a person\n opens the door. ")
    assert text.startswith('To pinpoint the event "a person opens the door" in the video, determine its precise time period')
    assert "in seconds with two decimals" in text
    assert text.endswith('"12.54 to 17.83".')
