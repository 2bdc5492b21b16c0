"""Documents of evaluations and comparisons: tasks, parts, flips, and folders that cannot be used."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_runs import make_run as made_run
from tests.support.pages import POOR, good, make_eval, poor, record
from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.compare import compare_folders
from vlmrl.evals.score.paired import Incomparable
from vlmrl.evals.score.records import Record
from vlmrl.extras.pages.view.save import write_comparison, write_page
from vlmrl.extras.pages.view.view import View, kept_documents
from vlmrl.extras.seeds.compare import compare_seeds

ARMS = (("less", ("base", "sft")), ("more", ("base", "sft", "rl")))
BOXES, CLICKS = ("box-1", "box-2"), ("click-1",)


def some(rows: list[Record], names: tuple[str, ...]) -> list[Record]:
    return [r for r in rows if r.sample_id in names]


def make(path: Path, model: str, rows: list[Record], **more: Any) -> Path:
    return make_eval(path, model, {"boxes": some(rows, BOXES), "clicks": some(rows, CLICKS)}, **more)


def test_tasks_come_in_the_order_of_the_suite_with_their_numbers(tmp_path: Path) -> None:
    make(tmp_path / "a", "base", poor())
    found = View([tmp_path / "a"]).document("evaluation/a")
    assert [(one["name"], one["text"]) for one in found["cards"][0]["rows"]] == [
        ("boxes, box IoU, n 2", "0.550"),  # 0.1 and 1
        ("clicks, step success, n 1", "0.100"),
    ]
    assert found["said"] == []
    table = View([tmp_path / "a"]).document("questions/a")
    assert (table["questions"]["sample"], table["questions"]["task"]) == (
        ["box-1", "box-2", "click-1"],
        ["bbox_task", "bbox_task", "action_task"],
    )
    assert [one["name"] for one in table["columns"]] == ["base"]


def test_parts_by_category(tmp_path: Path) -> None:
    rows = [dataclasses.replace(r, category=name) for r, name in zip(some(poor(), BOXES), ("near", "far"), strict=True)]
    make_eval(tmp_path / "a", "base", {"boxes": rows})
    parts = View([tmp_path / "a"]).document("evaluation/a")["tables"][1]
    assert [(row[0], row[1], row[2]["text"]) for row in parts["rows"]] == [("category=far", "1", "1.000"), ("category=near", "1", "0.100")]


def test_a_subset_is_called_one(tmp_path: Path) -> None:
    make(tmp_path / "a", "base", poor())
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    summary["suite"]["tasks"][0]["limit"] = 2
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary))
    assert View([tmp_path / "a"]).document("evaluation/a")["said"][-1].startswith("Of boxes the first 2 rows were asked: a subset")


def test_several_answers_to_a_question(tmp_path: Path) -> None:
    rows = [record("box-1", POOR["box-1"], score, k=k, seed=0) for k, score in enumerate((0.2, 0.6))]
    view = View([make_eval(tmp_path / "a", "base", {"boxes": rows})])
    view.document("live")
    found = view.document(f"question/{view.questions()[0]}")
    assert [(answer["where"], answer["k"], answer["score"]) for answer in found["answers"]] == [("base", 0, 0.2), ("base", 1, 0.6)]


def test_without_pixels_the_texts_are_shown(tmp_path: Path) -> None:
    table = View([make(tmp_path / "a", "base", poor(), frames=False)]).document("questions/a")["questions"]
    assert (table["text"], table["src"]) == (["", "", ""], [None] * 3)


def test_two_folders_side_by_side(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", "base", poor()), make(tmp_path / "b", "rl", good())
    out = write_comparison(compare_folders(a, b), tmp_path / "both" / "comparison.html")
    found = kept_documents(out)
    (name,) = (address for address in found if address.startswith("comparison/"))
    assert found["folder"]["start"] == name
    shown = found[name]
    assert shown["name"] == "rl against base"
    assert shown["said"][0].startswith("no regression:")
    (*boxes, change, _), _ = shown["tables"][0]["rows"]
    assert (boxes, change["text"]) == (["boxes", "2", "box IoU", "0.550", "0.450"], "-0.100")
    assert [row[0] for row in shown["tables"][0]["rows"]] == ["boxes", "clicks"]
    flips = next(table for table in shown["tables"] if table["title"] == "Questions that changed")
    question, _, before, after, *_ = next(row for row in flips["rows"] if row[0]["text"] == "box-2")
    assert (before, after["text"], after["kind"]) == ("1", "0", "worse")
    assert question["href"].removeprefix("#/").partition("?")[0] in found
    assert [one["name"] for one in found[shown["questions"]]["columns"]] == ["a/base", "b/rl"]
    assert json.loads((out.parent / "comparison.json").read_text())["models"] == ["base", "rl"]


def test_what_was_forced_stands_on_top(tmp_path: Path) -> None:
    a = make_eval(tmp_path / "a", "base", {"boxes": some(poor(), BOXES)})
    b = make_eval(tmp_path / "b", "rl", {"boxes": some(good(), BOXES[:1])})
    with pytest.raises(Incomparable):
        compare_folders(a, b)
    compare_folders(a, b, force=True).write(tmp_path / "c")
    found = View([tmp_path / "c"]).document("comparison/c")
    assert found["warnings"][0].startswith("task 'boxes': only the first has answers on 1 samples")
    assert found["questions"] is None, "its two sides are not shown here"


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to look at"):
        write_page(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps({"tasks": 3}))
    with pytest.raises(StorageError, match="not the summary of an evaluation"):
        write_page(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(StorageError, match=r"summary\.json: not JSON"):
        write_page(tmp_path)
    (tmp_path / "comparison.json").write_text('{"verdict": 1}')
    with pytest.raises(StorageError, match="not a comparison"):
        write_page(tmp_path)


def test_two_methods_over_seeds_have_a_table_of_their_own(tmp_path: Path) -> None:
    sides = [[made_run(tmp_path / f"{name}-s{seed}", seed=seed, groups=0, evaluated=stages) for seed in range(3)] for name, stages in ARMS]
    compare_seeds(*sides).write(tmp_path / "c")
    view = View([tmp_path / "c", *(run for side in sides for run in side)])
    found = view.document("comparison/c")
    (table,) = found["tables"]
    (row,) = table["rows"]
    assert (table["title"], row[:3], found["name"]) == ("Two methods over seeds", ["shell", "40", "exact"], "B against A")
    assert len(row[-1].split()) == 3
    assert row[5]["small"].startswith("[") or row[5]["small"].startswith("(")
    assert found["said"][0].startswith(("no regression", "regressed"))
    assert len(view.document(found["questions"])["runs"]) == 6
