"""Tables by how hard questions are: which rows there are and in which order, whose statistics they show, and where they do not apply."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.evals.test_evals_records import make_record
from tests.unit.evals.test_evals_table import shown
from vlmrl.evals.score.levels import difficulties, has_levels, level_table, levels, order, ranked, whole_stages
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.records import Record, Think
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import interval_text, level_cells
from vlmrl.evals.score.terminal import table
from vlmrl.extras.pages.view.view import View

CATEGORY = {0: "easy", 2: "medium", 3: "medium", 4: "hard", 10: "hard"}


def ask(n: int, level: int | None, /, *, right: bool = True, thinks: bool = False, stage: str = "sft", **changes: Any) -> Record:
    """An answer to question `n`: right or wrong, with a thought or none."""
    return make_record(
        f"q{n:03d}",
        **{
            "model": stage,
            "fingerprint": stage,
            "task": "first" if level == 0 else "last",
            "answer_type": "exact_text",
            "pred": (),
            "gold": (),
            "scores": {"exact": float(right)},
            "cluster": f"v{n}",
            "sample_hash": str(n),
            "difficulty": None if level is None else str(level),
            "category": None if level is None else CATEGORY[level],
            "think": Think(has=thinks, tokens=9 if thinks else 0),
            "n_out": 20 if thinks else 6,
            **changes,
        },
    )


def stage(name: str, right: Sequence[int], thinks: Sequence[int], per_level: int = 6) -> list[Record]:
    """`per_level` questions of each difficulty of `CATEGORY`; of each the first `right[i]` are right and the first `thinks[i]` thought."""
    return [
        ask(100 * i + n, difficulty, right=n < right[i], thinks=n < thinks[i], stage=name)
        for i, difficulty in enumerate(CATEGORY)
        for n in range(per_level)
    ]


STAGES = {
    "base": stage("base", (5, 2, 2, 1, 1), (1, 1, 0, 0, 0)),
    "sft": stage("sft", (6, 4, 3, 2, 1), (1, 3, 2, 2, 1)),
    "rl": stage("rl", (6, 6, 6, 6, 6), (0, 6, 6, 6, 6)),
}


def without(records: Sequence[Record], *names: str) -> list[Record]:
    return [dataclasses.replace(r, **dict.fromkeys(names)) for r in records]


def test_rows_are_categories_and_then_tasks_by_difficulty_in_numeric_order() -> None:
    rows = levels(STAGES["rl"])
    assert [(name, len(chosen)) for name, chosen in rows] == [
        ("easy (first 0)", 6),  # one and the same questions
        ("medium", 12),
        ("hard", 12),
        ("last 2", 6),
        ("last 3", 6),
        ("last 4", 6),
        ("last 10", 6),
    ]
    assert rows[2][1] == {r.sample_id for r in STAGES["rl"] if r.difficulty in ("4", "10")}


def test_what_is_not_there_is_not_named() -> None:
    one_task = [dataclasses.replace(r, task="t") for r in without(STAGES["rl"], "category")]
    assert [name for name, _ in levels(one_task)] == [f"difficulty {n}" for n in CATEGORY]
    some = [*one_task, ask(900, None, task="t")]
    assert [name for name, _ in levels(some)][-1] == "difficulty not given"
    same = [dataclasses.replace(r, category="all") for r in one_task]
    assert "all" not in [name for name, _ in levels(same)], "a category of everything says nothing"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"0": "a", "2": "b", "10": "c"}, ["a", "b", "c"]),
        ({"0": "z", "2": "b", "10": "b"}, ["z", "b"]),
        ({"0": "b", "2": "a", "3": "b", "10": "b"}, []),  # kinds of questions, and not ranges of difficulty
        ({"0": "hard", "10": "easy"}, ["easy", "hard"]),
        ({"1": "10", "2": "9"}, ["9", "10"]),
        ({"0": "a"}, []),
        ({"easy": "x", "hard": "w"}, ["x", "w"]),
        ({"red": "x", "blue": "w"}, []),
    ],
)
def test_categories_have_an_order_where_something_says_so(names: dict[str, str], expected: list[str]) -> None:
    assert ranked([ask(n, 0, difficulty=d, category=c) for n, (d, c) in enumerate(names.items())]) == expected


def test_difficulties_are_ordered_as_numbers_or_known_words() -> None:
    assert sorted(["hard", "10", "9", "other", "easy", "nan"], key=order) == ["9", "10", "easy", "hard", "nan", "other"]
    assert difficulties(STAGES["rl"]) == ["0", "2", "3", "4", "10"]
    assert difficulties([ask(0, 0, difficulty="easy"), ask(1, 0, difficulty="strange")]) == []
    assert difficulties([ask(0, 0)]) == []


def test_each_cell_is_the_statistics_of_its_own_questions() -> None:
    found = level_table(STAGES, 3)
    assert found is not None
    assert (found.label, found.stages) == ("accuracy", ("base", "sft", "rl"))
    header, *rows = level_cells(found)
    assert header[:5] == ["questions", "n", "base\naccuracy", "base\nthinks", "base\ntokens"]
    (hard,) = [row for row in rows if row[0] == "hard"]
    whole = {name: summarize(records, 3) for name, records in STAGES.items()}
    for n, name in enumerate(STAGES):
        part = whole[name].parts["category=hard"].metrics
        assert hard[2 + 3 * n] == interval_text("score", part["score"]), "the same as in the summary"
    assert hard[:2] == ["hard", "12"]
    assert hard[5:8] == [interval_text("score", whole["sft"].parts["category=hard"].metrics["score"]), "0.250", "9.5"]
    assert hard[5].startswith("0.250 [0.")
    assert hard[8:] == ["1.000 [0.758, 1.000]", "1.000", "20.0"]
    assert "last 10" in shown(table(level_cells(found)))


def test_a_stage_on_other_questions_has_empty_cells() -> None:
    found = level_table({"sft": STAGES["sft"], "rl": [r for r in STAGES["rl"] if r.difficulty != "10"]}, 0)
    assert found is not None
    (row,) = [row for row in level_cells(found) if row[0] == "last 10"]
    assert row[5:] == ["-", "-", "-"]


def test_scores_between_right_and_wrong_are_no_accuracy() -> None:
    rows = [ask(n, d, answer_type="short_text", scores={"anls": 0.5}) for n, d in enumerate((0, 2))]
    found = level_table({"sft": rows}, 0)
    assert found is not None
    assert found.label == "score"


def test_where_it_does_not_apply() -> None:
    rows = STAGES["sft"]
    assert has_levels(rows)
    assert has_levels(without(rows, "category"))
    assert has_levels(without(rows, "difficulty"))  # easy, medium and hard are in order
    assert not has_levels(without(rows, "category", "difficulty"))
    assert not has_levels([r for r in rows if r.difficulty == "0"])
    spans = [dataclasses.replace(r, answer_type="time_span", scores={"tiou": 0.5}) for r in rows]
    assert not has_levels(spans), "temporal grounding has several metrics that matter"
    assert not has_levels([*rows[:-1], dataclasses.replace(rows[-1], answer_type="choice")]), "two types have no metric in common"
    assert not has_levels([dataclasses.replace(r, scores={}) for r in rows]), "imported answers"
    assert not has_levels([])
    assert level_table({"sft": spans}, 0) is None
    assert level_table({}, 0) is None


def test_evaluations_within_a_stage_have_no_columns_of_their_own() -> None:
    assert whole_stages(["base", "rl@10", "rl@20", "rl"]) == ["base", "rl"]
    assert whole_stages(["base", "rl@10"]) == ["base", "rl@10"]  # not finished


def make_run(path: Path, stages: dict[str, list[Record]]) -> Path:
    """A run directory with these evaluations and nothing of its training."""
    (path / "eval").mkdir(parents=True)
    (path / "config.yaml").write_text("run: {name: small, seed: 3}\n")
    (path / "eval" / "order.json").write_text(json.dumps(list(stages)))
    for name, rows in stages.items():
        (path / "eval" / f"{name}.jsonl").write_bytes(b"".join(r.line() for r in rows))
    return path


def test_the_report_has_the_rows_of_the_terminal(tmp_path: Path) -> None:
    found = level_table(STAGES, 3)
    assert found is not None
    tables = View([make_run(tmp_path / "run", STAGES)]).document("run/run")["tables"]
    (shown,) = (one for one in tables if one["title"] == "By how hard questions are")
    # an interval without width is none on the page
    assert [[row[0], row[1], *(cell["text"] for cell in row[2:])] for row in shown["rows"]] == [
        [cell.split(" [")[0] if n > 1 else cell for n, cell in enumerate(row)] for row in level_cells(found)[1:]
    ]
    assert [row[0] for row in shown["rows"]].count("easy (first 0)") == 1
    assert f"{LABELS['tokens']} after RL" in shown["header"]


def test_reports_without_levels_have_no_such_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {name: without(rows, "category", "difficulty") for name, rows in STAGES.items()})
    assert "By how hard questions are" not in [one["title"] for one in View([run]).document("run/run")["tables"]]
