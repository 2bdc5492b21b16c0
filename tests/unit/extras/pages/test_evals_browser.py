"""Cards of questions: where marks lie on the screen, tags, several answers, old frames files, and frames on disk."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pages import POOR, ROWS, good, media, picture, poor, record, sample, save_frames_of
from vlmrl.errors import StorageError
from vlmrl.evals.score.records import Record
from vlmrl.extras.pages import browser
from vlmrl.extras.pages.browser import Bar, Question, by_sample, filters, layers, model_colours, pieces, question
from vlmrl.extras.pages.charts import COLOURS
from vlmrl.extras.pages.runfiles import frames_of, make_frames, read_frames, save_media, write_frames

COLOUR = model_colours(["base", "rl"])


def card(name: str, records: dict[str, list[Record]]) -> Question:
    return question(0, name, by_sample(records)[name], COLOUR, frames_of(*ROWS[name]))


def test_marks_lie_on_the_enlarged_picture():
    made = card("box-1", {"base": poor(), "rl": good()})
    assert (made.strip.width, made.strip.height, made.strip.still, made.strip.smooth) == (420.0, 280.0, True, False)  # 168 x 112 times 2.5
    gold, base, rl = made.strip.frames[0].layers
    assert [(x.number, x.colour) for x in (gold, base, rl)] == [(0, browser.TRUTH_COLOUR), (1, COLOUR["base"]), (2, COLOUR["rl"])]
    assert gold.shapes[0].path == "M105 70H210V210H105Z"  # 250, 250, 500, 750 thousandths
    assert base.shapes[0].path == "M210 140H378V252H210Z"
    click = card("click-1", {"base": poor()}).strip.frames[0].layers
    assert [s.dot for s in click[0].shapes] == [None, (157.5, 140.0)]
    assert [s.dot for s in click[1].shapes] == [(378.0, 28.0)]
    segment = card("segment-1", {"rl": good()}).strip.frames[0].layers[0]
    assert [(s.dot, s.path[:1]) for s in segment.shapes] == [(None, "M"), ((157.5, 140.0), ""), (None, "M")]
    pixels = card("point-1", {"base": poor()}).strip.frames[0].layers[0]
    assert [s.dot for s in pixels.shapes] == [(105.0, 140.0), (157.5, 70.0)]  # 42 of 168, 56 of 112


def test_marks_of_a_video_lie_on_their_frames():
    made = card("track-1", {"rl": good()})
    assert made.strip.height == 130.0
    assert [[x.number for x in f.layers] for f in made.strip.frames] == [[0, 2]] * 8
    tube = card("tube-1", {"base": poor(), "rl": good()})
    assert [[x.number for x in f.layers] for f in tube.strip.frames] == [[0, 1, 2]] + [[0, 2]] * 7
    assert tube.strip.frames[0].layers[1].shapes[0].odd
    assert tube.tags[-1] == "undrawn"
    assert [f.inside for f in tube.strip.frames] == [False, True, True, True, False, False, False, False]
    assert tube.gold_bars == (Bar(left=12.5, width=37.5),)
    assert tube.answers[0].bars == (Bar(left=50.0, width=50.0),)
    highlights = card("highlight-1", {"base": poor()})
    assert highlights.gold_bars == (Bar(left=0.0, width=50.0), Bar(left=50.0, width=50.0, strength=0.625))


def test_tags_of_answers():
    cards = {name: card(name, {"base": poor(), "rl": good()}) for name in ROWS}
    assert cards["box-1"].tags == ("better", "skipped")
    assert cards["box-2"].tags == ("worse", "failed", "low", "skipped")
    assert cards["span-1"].tags == ("better", "unreadable", "cut", "skipped")
    assert cards["track-1"].tags == ("better", "unreadable", "skipped")
    assert card("box-1", {"base": poor()}).tags == ("low", "thought")
    assert cards["span-1"].answers[0].says == "cut off"
    assert cards["track-1"].answers[0].says == "not readable"


def test_several_answers_of_one_model_are_all_shown_and_their_mean_counts():
    rows = [record("box-1", POOR["box-1"], score, k=k) for k, score in ((2, 1.0), (0, 0.0), (1, 0.5))]
    after = [record("box-1", POOR["box-1"], 0.4, model="rl")]
    made = card("box-1", {"base": rows, "rl": after})
    assert [a.model for a in made.answers] == ["base k=0", "base k=1", "base k=2", "rl"]
    assert [a.score for a in made.answers] == [0.0, 0.5, 1.0, 0.4]
    assert "worse" in made.tags  # 0.4 after a mean of 0.5
    assert [x.number for x in made.strip.frames[0].layers] == [0, 1, 1, 1, 2]


def test_imported_answers_without_counts():
    imported = record("box-1", POOR["box-1"], 0.5, n_in=None, n_out=None, finish=None, format_ok=None)
    assert card("box-1", {"base": [imported]}).answers[0].tokens is None


def test_models_keep_their_place_where_one_has_no_answer():
    made = card("box-1", {"base": [], "rl": good()})
    assert [(a.model, a.layer, a.colour) for a in made.answers] == [("rl", 2, COLOUR["rl"])]
    assert not {"better", "worse"} & set(made.tags)


def test_colours_of_models_differ_from_that_of_the_truth():
    colours = model_colours([str(n) for n in range(7)])
    assert len(set(colours.values())) == 7
    assert browser.TRUTH_COLOUR in COLOURS
    assert browser.TRUTH_COLOUR not in colours.values()


def test_the_thought_is_part_of_the_text():
    assert pieces("a<think>b</think>c<answer>d</answer>") == (
        ("", "a"),
        ("thought", "<think>b</think>"),
        ("", "c"),
        ("answer", "<answer>d</answer>"),
    )
    assert pieces("<THINK>never <answer>closed") == (("thought", "<THINK>never <answer>closed"),)
    assert pieces("") == ()


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x", "\n", "<"]), max_size=12).map("".join))
def test_pieces_are_the_whole_text(text):
    assert "".join(piece for _, piece in pieces(text)) == text


def test_there_is_a_time_axis_only_where_an_answer_has_times():
    assert [label for _, label in card("span-1", {"rl": good()}).axis] == ["0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4"]
    assert card("track-1", {"rl": good()}).axis == ()
    assert card("box-1", {"rl": good()}).axis == ()


def test_pixels_are_not_blown_up_or_cut():
    wide = frames_of(sample("w", "bbox", {"boxes": [[0, 0, 1, 1]]}), media(picture(size=(100, 2000))))
    made = browser.strip_of(wide, [])
    assert (made.width, made.height, made.smooth) == (620.0, 31.0, True)
    tall = frames_of(sample("t", "bbox", {"boxes": [[0, 0, 1, 1]]}), media(picture(size=(920, 100))))
    assert browser.strip_of(tall, []).height == 460.0
    assert browser.strip_of(tall, []).pixels == "a picture of 100 × 920 pixels"


def test_filters_offer_what_there_is():
    cards = [card(name, {"base": poor(), "rl": good()}) for name in ("box-1", "box-2")]
    offered = filters(cards)
    assert [(name, n) for name, _, n in offered["tags"]] == [("better", 1), ("worse", 1), ("failed", 1), ("low", 1), ("skipped", 2)]
    assert offered["tasks"] == []
    assert filters([*cards, card("span-1", {"rl": good()})])["tasks"] == ["bbox_task", "time_span_task"]
    assert [number for number, _, _ in layers(COLOUR, cards)] == [0, 1, 2]
    assert layers(COLOUR, [card("span-1", {"rl": good()})]) == []


def test_frames_on_disk_are_what_was_saved(tmp_path):
    save_frames_of(tmp_path, list(ROWS))
    read = read_frames(tmp_path, [poor()])
    assert [f.sample_id for f in read] == list(ROWS)
    for frames in read:
        saved, made = (json.dumps(dataclasses.asdict(x), sort_keys=True) for x in (frames, frames_of(*ROWS[frames.sample_id])))
        assert saved == made


def test_frames_files_of_earlier_versions_are_read(tmp_path):
    path = save_media(tmp_path, *ROWS["box-1"])
    value = json.loads(path.read_text())
    del value["target"]
    path.write_text(json.dumps(value))
    [frames] = read_frames(tmp_path, [poor()])
    assert frames.target is None
    made = question(0, "box-1", by_sample({"base": poor()})["box-1"], COLOUR, frames)
    assert made.strip.frames[0].layers == ()
    assert "kept without the row's coordinate frame" in made.problems[0]
    times = np.arange(8) / 2
    shown = make_frames("span-1", frames=picture(count=8), times=times, question="?", gold=(1.0, 3.0), duration=4.0)
    write_frames(tmp_path / "eval" / "frames", shown)
    [old] = [f for f in read_frames(tmp_path / "eval" / "frames", [])]
    made = question(0, "span-1", by_sample({"rl": good()})["span-1"], COLOUR, old)
    assert (made.gold_bars, made.answers[0].bars, made.problems) == ((Bar(left=25, width=50),), (Bar(left=25, width=37.5),), ())


@pytest.mark.parametrize("change", [{"frame": "percent"}, {"unit": "hours"}, {"gt": 3}, {"pictures": "x"}])
def test_a_damaged_target_is_named(tmp_path, change):
    path = save_media(tmp_path, *ROWS["box-1"])
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "target": {**value["target"], **change}}))
    with pytest.raises(StorageError, match="not frames of a question"):
        read_frames(tmp_path, [])
