"""Pages of evaluation folders: their tables, their cards, comparisons, and folders that cannot be used."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from tests.support.pages import POOR, good, make_eval, poor, record
from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.paired import Incomparable
from vlmrl.extras.pages.eval_page import page, write_comparison, write_eval_report
from vlmrl.extras.pages.runfiles import load_eval

BOXES, CLICKS = ("box-1", "box-2"), ("click-1",)


def some(rows, names):
    return [r for r in rows if r.sample_id in names]


def make(path, model, rows, **more):
    return make_eval(path, model, {"boxes": some(rows, BOXES), "clicks": some(rows, CLICKS)}, **more)


def test_tasks_come_in_the_order_of_the_suite_with_their_tables(tmp_path):
    files = load_eval(make(tmp_path / "a", "base", poor()))
    values = page({"base": files}, "base", [])
    assert [task["name"] for task in values["tasks"]] == ["boxes", "clicks"]
    boxes = values["tasks"][0]
    assert boxes["table"]["header"][:2] == ["box IoU", "box R@0.5"]
    assert boxes["table"]["rows"][0]["cells"][0]["mean"] == "0.550"  # 0.1 and 1
    assert boxes["table"]["rows"][0]["cells"][0]["interval"] == "(no interval: 2 clusters)"
    assert re.fullmatch(r"\[0\.\d+, 0\.\d+\]", boxes["table"]["rows"][0]["cells"][1]["interval"])
    assert "0.550 (no interval: 2 clusters)" in [row["dot"]["text"] for row in boxes["figures"][0]["rows"]]
    assert [(q.id, q.task, q.index) for q in values["questions"]] == [
        ("box-1", "boxes", 0),
        ("box-2", "boxes", 1),
        ("click-1", "clicks", 2),
    ]
    assert values["filters"]["tasks"] == ["boxes", "clicks"]


def test_parts_by_category(tmp_path):
    rows = [dataclasses.replace(r, category=name) for r, name in zip(some(poor(), BOXES), ("near", "far"), strict=True)]
    values = page({"base": load_eval(make_eval(tmp_path / "a", "base", {"boxes": rows}))}, "base", [])
    parts = values["tasks"][0]["parts"]["rows"]
    assert [(row["name"], row["n"], row["cells"][0]["mean"]) for row in parts] == [
        ("category=far", 1, "1.000"),
        ("category=near", 1, "0.100"),
    ]
    assert [q.category for q in values["questions"]] == ["near", "far"]


def test_the_page_of_one_folder(tmp_path):
    out = make(tmp_path / "a", "<b>base</b>", poor())
    path = write_eval_report(out)
    assert path == out / "report.html"
    text = path.read_text(encoding="utf-8")
    assert "<b>base" not in text
    assert "&lt;b&gt;base" in text
    assert text.count("<script>") == 1
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "")
    assert set(re.findall(r"url\(([a-z/]+[:;])", text)) == {"data:"}
    assert text.count('class="card question"') == 3
    assert 'd="M105 70H210V210H105Z"' in text
    assert write_eval_report(out).read_text(encoding="utf-8") == text


def test_several_answers_to_a_question(tmp_path):
    rows = [record("box-1", POOR["box-1"], score, k=k, seed=0) for k, score in enumerate((0.2, 0.6))]
    text = write_eval_report(make_eval(tmp_path / "a", "base", {"boxes": rows})).read_text(encoding="utf-8")
    assert "1 questions about 1 videos or pictures, 2 answers." in text
    assert "base k=0" in text
    assert "base k=1" in text


def test_without_pixels_the_texts_are_shown(tmp_path):
    values = page({"base": load_eval(make(tmp_path / "a", "base", poor(), frames=False))}, "base", [])
    assert [(q.text, q.strip) for q in values["questions"]] == [("box-1", None), ("box-2", None), ("click-1", None)]
    assert 'class="card question"' in write_eval_report(tmp_path / "a").read_text(encoding="utf-8")


def test_two_folders_side_by_side(tmp_path):
    a, b = make(tmp_path / "a", "base", poor()), make(tmp_path / "b", "rl", good())
    out = write_comparison(compare_folders(a, b), tmp_path / "both.html")
    assert out == tmp_path / "both.html"
    values = page({"base": load_eval(a), "rl": load_eval(b)}, "", [], compare_folders(a, b))
    boxes = values["tasks"][0]
    assert boxes["missing"] == values["warnings"] == []
    assert (boxes["difference"]["better"], boxes["difference"]["worse"]) == (1, 1)
    assert boxes["difference"]["cells"]["box IoU"]["mean"] == "-0.100"
    assert boxes["difference"]["holm"] == "box IoU: p 1.000 after Holm"
    assert [[(answer.model, answer.layer) for answer in q.answers] for q in values["questions"]] == [[("base", 1), ("rl", 2)]] * 3
    assert ["better" in q.tags for q in values["questions"]] == [True, False, True]
    text = out.read_text(encoding="utf-8")
    assert "1 better, 1 worse" in text


def test_the_same_model_twice_and_tasks_of_one_side(tmp_path):
    a = make(tmp_path / "a", "base", poor())
    b = make_eval(tmp_path / "b", "base", {"boxes": some(good(), BOXES)})
    text = write_comparison(compare_folders(a, b), tmp_path / "both.html").read_text(encoding="utf-8")
    assert "base (a)" in text
    assert "base (b) was not evaluated on this task" in text


def test_what_was_forced_stands_on_top(tmp_path):
    a = make_eval(tmp_path / "a", "base", {"boxes": some(poor(), BOXES)})
    b = make_eval(tmp_path / "b", "rl", {"boxes": some(good(), BOXES[:1])})
    with pytest.raises(Incomparable):
        compare_folders(a, b)
    text = write_comparison(compare_folders(a, b, force=True), tmp_path / "both.html").read_text(encoding="utf-8")
    assert "warning: task &#39;boxes&#39;: only the first has answers on 1 samples" in text
    assert text.count('class="card question"') == 2


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match=r"no evaluation there \(no summary.json\)"):
        write_eval_report(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps({"tasks": 3}))
    with pytest.raises(StorageError, match="not the summary of an evaluation"):
        write_eval_report(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(StorageError, match=r"summary\.json: not JSON"):
        write_eval_report(tmp_path)
