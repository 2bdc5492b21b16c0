"""importers.tasks: rows that are tasks of an environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlmrl.data.adapters import ImportOptions, detect
from vlmrl.data.source import read_source
from vlmrl.extras.agents.rows import plain_task


def test_a_task_keeps_its_id_and_what_its_environment_is_given(tmp_path: Path) -> None:
    rows = [{"id": "desk-2", "environment": {"length": 2}, "level": "easy"}, {"id": "plain", "environment": {}, "task": "desks"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_source(tmp_path / "t.jsonl", media_root=".", dedupe="error", options=ImportOptions())
    assert (read.shape, read.bad) == ("tasks", [])
    assert [plain_task(sample) for sample in read.samples] == [{"id": "desk-2", "length": 2}, {"id": "plain"}]
    assert [sample.task for sample in read.samples] == ["environment", "desks"]
    assert read.samples[0].meta["level"] == "easy"


def test_a_row_of_an_id_alone_is_a_task_where_the_source_says_so(tmp_path: Path) -> None:
    rows = [
        {"id": "a"},
        {"id": "b", "environment": None},
        {"id": "c", "trajectory": {"length": 3}},
        {"id": "d", "environment": {"length": 2}},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_source(tmp_path / "t.jsonl", media_root=".", dedupe="error", options=ImportOptions(adapter="tasks"))
    assert (read.shape, read.bad) == ("tasks", [])
    assert [plain_task(sample) for sample in read.samples] == [{"id": "a"}, {"id": "b"}, {"id": "c"}, {"id": "d", "length": 2}]
    assert read.samples[2].meta["trajectory"] == {"length": 3}


def test_a_task_without_an_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"environment": {}}\n')
    read = read_source(tmp_path / "t.jsonl", media_root=".", dedupe="error", options=ImportOptions())
    assert [bad.reason for bad in read.bad] == ["missing_key"]


@pytest.mark.parametrize(
    "row",
    [
        {"environment": "desk"},
        {"id": "a"},
        {"id": "a", "question": "?"},
        {"id": "a", "task": "t"},
        {"id": None},
        {},
        {"id": "a", "answer_type": "number", "environment": {}},
    ],
)
def test_other_rows_are_not_taken_for_tasks(row: dict[str, object]) -> None:
    assert detect(row) != "tasks"
