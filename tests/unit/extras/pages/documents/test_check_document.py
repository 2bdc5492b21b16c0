"""The document of `vlmrl check`: what is flagged, by hand; the order; counts; and that nothing of a row becomes markup."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support.pages import media, picture, sample
from vlmrl.answers.marks import Mark, Marks
from vlmrl.data.source import BadRow
from vlmrl.extras.pages.documents.check import CheckRows, check_doc, frames_within, order_of, row_of, smallest_box
from vlmrl.extras.pages.view.view import kept_documents
from vlmrl.types import Prompt, Sample

EVIL = "<script>alert(1)</script>\x1b"


def prompt(made: Sample, tokens: int, shown) -> Prompt:
    return Prompt(sample=made, ids=tuple(range(tokens)), media=(shown.handle,), spans=((0, 1),), answer_format="think")


def box_row(box: list[float], tokens: int = 10, **more) -> tuple[list[str], list[str]]:
    row = row_of("s", sample("a", "bbox", {"boxes": [box]}, **more), media(picture()), tokens=tokens, budget=100)
    return row["flags"], row["facts"]


def test_small_boxes_are_measured_in_vision_tokens():
    # 112 x 168 pixels are 8 x 12 patches of 14 pixels, and 24 tokens; a tenth by a tenth of the picture is 0.24 of one.
    tokens = "10 tokens, 10% of the budget"
    assert box_row([0, 0, 100, 100]) == (["small"], [tokens, "smallest box 0.24 vision tokens"])
    assert box_row([0, 0, 500, 500]) == ([], [tokens, "smallest box 6 vision tokens"])
    assert smallest_box(Marks(), 24) is None
    two = Marks(shapes=(Mark(kind="box", points=((0, 0), (50, 50))), Mark(kind="box", points=((0, 0), (10, 20)))))
    assert smallest_box(two, 100) == pytest.approx(2.0)


def test_short_spans_are_measured_in_frames():
    times = np.arange(8) / 2
    assert frames_within(times, (1.0, 1.4)) == 1  # only the one of 1.0
    assert frames_within(times, (1.1, 1.4)) == 1  # that of 1.0 is still on screen
    assert frames_within(times, (1.1, 1.6)) == 2
    assert frames_within(times, (0.0, 4.0)) == 8
    shown = media(picture(count=8), video=True)
    for span, flags, inside in (([1.0, 1.4], ["short"], 1), ([1.0, 3.0], [], 4)):
        row = row_of("s", sample("a", "time_span", {"time": span}, meta={}), shown, tokens=10, budget=100)
        assert (row["flags"], row["facts"][1:]) == (flags, [f"{inside} frames in the shortest span", "frames up to 0.5 s apart"])


def test_long_prompts_and_answers_outside():
    assert box_row([0, 0, 500, 500], tokens=90)[0] == []
    assert box_row([0, 0, 500, 500], tokens=91)[0] == ["long"]
    assert box_row([0, 0, 1500, 500])[0] == ["undrawn"]
    assert box_row([0, 0, 500, 500], meta={})[0] == ["undrawn"]


def test_the_worst_come_first():
    rows = {
        "rejected": order_of(["rejected", "small"]),
        "outside": order_of(["undrawn"]),
        "long": order_of(["long"], 0.95),
        "small but fuller": order_of(["small"], 0.6, 3.0),
        "smaller": order_of(["small"], 0.5, 1.0),
        "small": order_of(["small"], 0.5, 2.0),
        "short": order_of(["short"], 0.0, None, 0.1),
        "plain fuller": order_of([], 0.3),
        "plain": order_of([], 0.2),
    }
    assert sorted(rows, key=lambda name: rows[name]) == list(rows)
    assert sorted(reversed(rows), key=lambda name: rows[name]) == list(rows)


def test_collected_rows_are_limited_per_source_and_counted():
    rows, shown = CheckRows(budget=100, limit=2), media(picture())
    for n in range(5):
        made = sample(f"g{n}", "bbox", {"boxes": [[0, 0, 500, 500]]})
        assert rows.wants("a.jsonl") == (n < 2)
        rows.add("a.jsonl", prompt(made, 10, shown), shown if rows.wants("a.jsonl") else None)
        rows.reject("a.jsonl", made, "missing", "missing: gone.png is not there")
    rows.reject_unread("b.jsonl", BadRow(file="b.jsonl", line=7, reason="json", message="no JSON", excerpt="{x"))
    values = check_doc(rows)
    assert [(s["name"], s["good"], s["shown_good"], s["rejected"], s["shown_rejected"]) for s in values["sources"]] == [
        ("a.jsonl", 5, 2, 5, 2),
        ("b.jsonl", 0, 0, 1, 1),
    ]
    assert [(row["id"], row["reason"]) for row in values["rows"]] == [
        *(("g0", "missing"), ("g1", "missing"), ("", "json"), ("g0", ""), ("g1", ""))
    ]
    assert values["rows"][0]["message"] == "gone.png is not there"
    assert (values["rows"][2]["question"], values["rows"][2]["place"]) == ("{x", "b.jsonl:7")
    assert values["flags"] == {"rejected": "rejected"}


def test_a_rejected_row_shows_its_pixels_where_they_are_not_the_fault():
    rows, shown = CheckRows(budget=100), media(picture())
    rows.reject("s", sample("a", "bbox", {"boxes": [[0, 0, 500, 500]]}), "overlong", "overlong: too long", shown)
    (row,) = check_doc(rows)["rows"]
    assert row["marks"]["shapes"][0]["points"][0] == (0, 0)
    assert row["media"][0]["size"] == [112, 168]


def test_the_page_is_whole_and_asks_for_nothing(tmp_path):
    rows, shown = CheckRows(budget=100), media(picture(count=8), video=True)
    made = sample("v", "time_span", {"time": [1.0, 1.4]}, meta={}, question=EVIL, answer=EVIL)
    rows.add("s", prompt(made, 95, shown), shown)
    rows.reject("s", dataclasses.replace(made, id=EVIL), "corrupt", EVIL)
    path = rows.write(tmp_path / "check.html")
    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "").replace("http://www.w3.org/2000/svg", "")
    shown = kept_documents(path)["check/page"]
    assert [row["reason"] for row in shown["rows"]] == ["corrupt", ""]
    assert shown["rows"][1]["facts"] == ["95 tokens, 95% of the budget", "1 frames in the shortest span", "frames up to 0.5 s apart"]
    assert shown["rows"][1]["question"] == EVIL, "the page spells out what is invisible"
    assert shown["flags"]["short"] == "a span with fewer than two frames"
    assert rows.write(tmp_path / "again.html").read_bytes() == path.read_bytes()
