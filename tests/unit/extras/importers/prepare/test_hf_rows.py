"""vlmrl.extras.importers.prepare.hf_rows: what scripts share that read the hub's Parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.samples import unpack
from tests.support.standins import image_bytes as standin
from tests.support.standins import picture as standin_pixels
from vlmrl.answers.point import pointing_score
from vlmrl.data.row import parse_row
from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.prepare.hf_rows import (
    choice,
    image_bytes,
    inline_choice,
    inline_options,
    letter_of,
    made,
    mask_of,
    number_or,
    picture,
    pointing,
    question_row,
    records,
    run_lengths,
    texts,
)
from vlmrl.extras.importers.prepare.prepare import Embedded, Row, Skipped
from vlmrl.metrics.points import decode_mask, parse_points

DATA = Path(__file__).parents[5] / "data"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Which? A. left B. right", ["A. left", "B. right"]),
        ("Which?\n(A) left\n(B) right\n(C) both", ["(A) left", "(B) right", "(C) both"]),
        ("Which?\nOptions: A: 1, B: 2, or 3, C: 4", ["A: 1", "B: 2, or 3", "C: 4"]),
        ("Which?\nChoices:\nA:50°\nB:60°\n", ["A:50°", "B:60°"]),
        ("Point A. is here. A. left B. right", ["A. left", "B. right"]),
        ("Which?\nA. left\nB. right\nThink first.", ["A. left", "B. right"]),
        ("Which?\nA. left lane\n\nB. right lane", ["A. left lane", "B. right lane"]),
        ("Is it so?", []),
        ("What is A?", []),
        ("A. alone", []),
        ("B. two A. one", []),
        ("Which? A. B. right", []),
        ("", []),
    ],
)
def test_inline_options(question: str, expected: list[str]):
    assert inline_options(question) == expected


@given(st.text(alphabet="ABCD.:() \nxy,", max_size=60))
def test_inline_options_stand_in_the_text_in_order(question: str):
    options = inline_options(question)
    assert len(options) != 1
    at = 0
    for option in options:
        at = question.index(option, at) + 1
        assert option.strip() == option != ""


@given(st.lists(st.text(alphabet="abc 12", min_size=1, max_size=8).map(str.strip).filter(bool), min_size=2, max_size=6))
def test_inline_options_read_what_was_written(options: list[str]):
    lines = [f"{'ABCDEF'[i]}. {option}" for i, option in enumerate(options)]
    assert inline_options("Which one?\n" + "\n".join(lines)) == lines


@pytest.mark.parametrize(("text", "expected"), [("B", "B"), ("b", "B"), ("(b)", "B"), (" C. ", "C"), ("D:", "D")])
def test_letter_of(text: str, expected: str):
    assert letter_of(text) == expected


@pytest.mark.parametrize("text", ["", "AB", "2", "the left", "((A))"])
def test_letter_of_refuses_other_texts(text: str):
    with pytest.raises(RowError, match="not the letter of an option"):
        letter_of(text)


ROW: Row = {"id": "r", "task": "t", "prompt": "Which?", "meta": {"split": "x"}}


@pytest.mark.parametrize("right", [2, -1, "C"])
def test_choice_needs_its_right_option(right: int | str):
    with pytest.raises(RowError, match="the right option is"):
        choice(ROW, ["left", "right"], right)


@pytest.mark.parametrize("options", [[], ["left", " "]])
def test_choice_needs_options(options: list[str]):
    with pytest.raises(RowError, match="are none or blank"):
        choice(ROW, options, 0)


def test_choice_takes_an_index_or_a_letter():
    assert choice(ROW, ["left", "right"], 1) == choice(ROW, ["left", "right"], "(b)")
    assert choice(ROW, ["left", "right"], 1)["options"] == ["A. left", "B. right"]


def test_inline_choice_lists_options_only_if_the_right_one_is_among_them():
    row: Row = {**ROW, "prompt": "Which? A. left B. right"}
    assert inline_choice(row, "B")["options"] == ["A. left", "B. right"]
    assert "options" not in inline_choice(row, "C")


@pytest.mark.parametrize(("answer", "number"), [("4", 4.0), (" -2.50 ", -2.5), ("1,200", 1200.0), ("0", 0.0)])
def test_number_or_reads_plain_numbers(answer: str, number: float):
    row = number_or(ROW, answer, "exact_text")
    assert (row["answer_type"], row["gt"]["number"]) == ("number", number)


@pytest.mark.parametrize("answer", ["10^-3", "4 m", "21%", "1e5", "12,34", "two", "3/4", "nan"])
def test_number_or_leaves_other_texts(answer: str):
    assert number_or(ROW, answer, "exact_text") == {**ROW, "answer_type": "exact_text", "answer": answer}


def test_texts_drop_blank_answers():
    assert texts(ROW, ["", "a", " "])["gt"] == {"answers": ["a"]}
    with pytest.raises(RowError, match="there is no answer"):
        texts(ROW, [" "])


def test_question_row_takes_placeholders_out():
    row = question_row("r", task="t", images=["a.png", "b.png"], prompt="<image><image>\nCompare <image1> and <image2>.", meta={})
    assert (row["prompt"], row["data_type"]) == ("Compare <image1> and <image2>.", "multi_image")
    with pytest.raises(RowError, match="no text"):
        question_row("r", task="t", images=["a.png"], prompt=" <image> ", meta={})


def test_pictures_get_the_suffix_of_their_format():
    for suffix in ("png", "jpg"):
        data = standin(f"a.{suffix}")
        assert picture({"bytes": data, "path": None}, "x/1") == Embedded(f"x/1.{suffix}", data)
        assert picture(data, "x/1").path == f"x/1.{suffix}"
    assert picture(b"RIFF\0\0\0\0WEBPVP8 ", "x").path == "x.webp"
    with pytest.raises(RowError, match="neither PNG, JPEG nor WebP"):
        picture(b"GIF89a", "x")
    for nothing in (None, {"bytes": None, "path": "a.png"}, b"", "a.png"):
        with pytest.raises(RowError, match="not in the file"):
            image_bytes(nothing)


def test_made_turns_a_faulty_record_into_a_skipped_one():
    def fail() -> Row:
        raise RowError("bad_value", "no good")

    assert made("r", lambda: ROW) == ROW
    assert made("r", fail, unit=3) == Skipped("r", "bad_value: no good", unit=3)


def test_records_come_from_all_files_of_the_first_pattern(tmp_path: Path):
    unpack(DATA / "realworldqa", tmp_path)
    found = [item["answer"] for item in records(tmp_path, "none-*.parquet", "data/test-*.parquet", "**/*.parquet")]
    assert found == ["B", "4", "Downhill", "Yes", "A"]


def test_records_refuse_what_is_not_parquet(tmp_path: Path):
    (tmp_path / "a.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DataError, match=r"a\.parquet: not a Parquet file"):
        list(records(tmp_path, "*.parquet"))


MASKS = hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9))


@given(MASKS)
def test_run_lengths_are_read_back(mask: np.ndarray):
    lengths = run_lengths(mask)
    assert sum(lengths["counts"]) == mask.size
    assert (decode_mask(lengths) == mask).all()


def test_run_lengths_by_hand():
    """Columns first, beginning outside: (0, 1), (1, 1) are the first two columns of a picture of 2 x 2."""
    assert run_lengths(np.array([[False, True], [True, True]])) == {"size": [2, 2], "counts": [1, 3]}
    assert run_lengths(np.array([[True, False], [True, True]])) == {"size": [2, 2], "counts": [0, 2, 1, 1]}


@given(MASKS.filter(lambda mask: bool(mask.any())))
def test_pointing_answers_with_a_point_on_the_mask(mask: np.ndarray):
    row = pointing(ROW, mask)
    ((x, y),) = parse_points(row["answer"]) or []
    height, width = mask.shape
    assert mask[int(y * height / 1000), int(x * width / 1000)]
    sample = parse_row(row, source="t", media_root="")
    assert pointing_score(row["answer"], sample) == 1


def test_pointing_needs_a_mask_with_something_on_it():
    with pytest.raises(RowError, match="the mask is empty"):
        pointing(ROW, np.zeros((3, 4), dtype=bool))


def test_mask_of_a_picture():
    pixels = standin_pixels("m.png")
    for least in (1, 128, 255):
        assert (mask_of(standin("m.png"), at_least=least) == (pixels[..., 0] >= least)).all()
