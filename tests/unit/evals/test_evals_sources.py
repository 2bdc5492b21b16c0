"""Rows of an evaluation are read as training reads them: by the `source` of a suite's task, or from a file without any suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.embedded_rows import SOURCE, write_parquet
from vlmrl.config.schema import MediaSection
from vlmrl.config.section import SourceSection
from vlmrl.data.adapters import ImportOptions
from vlmrl.errors import ConfigError, DataError
from vlmrl.evals.ask.asking import Asking
from vlmrl.evals.ask.rows import rows_suite
from vlmrl.evals.ask.run import task_samples
from vlmrl.evals.ask.suite import data_root_of, load_suite
from vlmrl.evals.ask.tasks import Task
from vlmrl.evals.score.measures import metrics_of
from vlmrl.run.check_rows import rows_config

FILE = "val.parquet"
ASKING = Asking(
    media=MediaSection(fps=1.0),
    answer_format="answer_only",
    answer_type=None,
    frame=None,
    max_prompt_tokens=512,
    max_new_tokens=9,
    prompt="{{ question }} Be brief.",
    notes=("asked as stage 'rl' of run 'x'", "a second note"),
)


def write_suite(folder: Path, source: Any, **more: Any) -> Path:
    task = {"id": "t", "source": source, "answer_format": "think", "answer_type": "exact_text", "max_new_tokens": 8} | more
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"id": "mine", "version": 1, "tasks": [task]}))
    return path


def own_rows(path: Path, *kinds: str) -> Path:
    answers = {"exact_text": "red", "number": "3"}
    rows = [
        {"id": f"r{k}", "task": "t", "answer_type": kind, "prompt": "What?", "answer": answers[kind], "gt": {}}
        for k, kind in enumerate(kinds)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_task_reads_what_a_recipe_reads(tmp_path: Path):
    write_parquet(tmp_path / FILE)
    said = {key: value for key, value in SOURCE.items() if key != "answer_type"}  # the task has said it
    (task,) = load_suite(write_suite(tmp_path, {"path": FILE, **said})).tasks
    samples, whole = task_samples(task, tmp_path, None)
    assert whole == 3
    assert [(s.question, s.answer, s.answer_type) for s in samples] == [
        (f"Which colour is shape {k}?", colour, "exact_text") for k, colour in enumerate(("red", "green", "blue"))
    ]
    assert all((tmp_path / s.media[0].path).is_file() and s.media[0].path.startswith("pictures/") for s in samples)


def test_a_task_knows_every_key_of_a_source(tmp_path: Path):
    given: dict[str, Any] = {
        "path": "a.jsonl",
        "media_root": "m",
        "answer_type": "bbox",
        "task": "t",
        "frame": "pixel",
        "axis": "yxyx",
        "to_frame": "pixel",
        "time_unit": "frames",
        "time_fps": 25.0,
        "instructions": "keep",
        "turns": "split",
        "columns": {"prompt": "q", "images": ["a", "b"]},
        "media_folder": "pictures",
        "frames_fps": 2.0,
    }
    assert set(given) | {"adapter"} == set(SourceSection.model_fields)  # `adapter` and `columns` exclude each other
    (task,) = load_suite(write_suite(tmp_path, given)).tasks
    options = ImportOptions.of(task.rows, tmp_path)
    assert options == ImportOptions(
        media_dir=tmp_path / "m",
        **{key: value for key, value in given.items() if key not in ("path", "media_root", "columns")},
        columns={"prompt": "q", "images": ("a", "b")},
    )
    del given["columns"]
    (task,) = load_suite(write_suite(tmp_path, given | {"adapter": "trl"})).tasks
    assert task.rows.adapter == "trl"


def test_a_file_alone_is_the_short_form():
    short = Task(id="t", source="a.jsonl", media_root="m", answer_format="think", answer_type="exact_text", max_new_tokens=8)
    assert short.file == "a.jsonl"
    assert short.rows == SourceSection(path="a.jsonl", media_root="m", answer_type="exact_text")
    mixed = short.model_copy(update={"answer_type": ("number", "exact_text")})
    assert mixed.rows.answer_type is None


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ({"path": "a", "colums": {}}, {}, "mine.yaml:14: tasks.0.source.colums: unknown key 'colums'; did you mean 'columns'?"),
        ({"path": "a", "turns": "all"}, {}, "tasks.0.source.turns: Input should be 'first', 'last' or 'split', got 'all'"),
        ({"turns": "last"}, {}, "tasks.0.source.path: Field required"),
        ({"path": "a", "time_unit": "frames"}, {}, "tasks.0.source: time_unit: frames and time_fps belong together; give both or neither"),
        ("a", {"media_folder": "x"}, "unknown key 'media_folder'; it stands within 'source': source: {path: ..., media_folder: ...}"),
        ("a", {"columns": {"prompt": "q"}}, "unknown key 'columns'; it stands within 'source': source: {path: ..., columns: ...}"),
        ({"path": "a"}, {"media_root": "m"}, "media_root stands within `source` where that is a mapping"),
        ({"path": ""}, {}, "source: is missing"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, source: Any, more: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        load_suite(write_suite(tmp_path, source, **more))
    assert message.replace("mine.yaml:14: ", "") in str(caught.value)
    assert len(caught.value.problems) == 1
    assert str(tmp_path / "mine.yaml") in str(caught.value)


def test_messages_advise_no_key_of_a_recipe(tmp_path: Path):
    write_parquet(tmp_path / FILE)
    (task,) = load_suite(write_suite(tmp_path, FILE)).tasks
    with pytest.raises(DataError) as caught:
        task_samples(task, tmp_path, None)
    assert "set 'media_folder' of the source" in str(caught.value)
    assert "data." not in str(caught.value).replace("data.parquet", "")
    assert "max_bad_rows" not in str(caught.value)
    rows = own_rows(tmp_path / "two.jsonl", "number", "number")
    rows.write_text(rows.read_text().replace("r1", "r0"))
    with pytest.raises(DataError) as caught:
        task_samples(task.model_copy(update={"source": "two.jsonl"}), tmp_path, None)
    assert "1 of 2 rows are bad" in str(caught.value)
    assert "data." not in str(caught.value)


def test_a_suite_looks_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("VLMRL_DATA", str(elsewhere))
    path = write_suite(tmp_path, f"{FILE}#2")
    assert data_root_of(load_suite(path), None) == elsewhere  # no such rows beside it
    write_parquet(tmp_path / FILE)
    suite = load_suite(path)
    assert data_root_of(suite, None) == tmp_path
    assert data_root_of(suite, elsewhere) == elsewhere
    path.write_text(path.read_text() + f"data_root: {elsewhere}\n")
    assert data_root_of(load_suite(path), None) == elsewhere


def test_rows_make_a_suite_with_the_metrics_of_their_types(tmp_path: Path):
    own_rows(tmp_path / "my rows.jsonl", "number", "exact_text", "number")
    source = rows_config(tmp_path / "my rows.jsonl", [], media_root=None, model=None).stages[0].source
    said: list[str] = []
    suite = rows_suite(source, tmp_path, ASKING, say=said.append)
    (task,) = suite.tasks
    assert (suite.id, task.id, task.answer_types) == ("my_rows", "my_rows", ("number", "exact_text"))
    assert (task.metrics, task.primary) == (metrics_of("number", "exact_text"), "score")
    assert (task.asked, task.max_new_tokens, task.max_prompt_tokens) == ("answer_only", 9, 512)
    assert (task.media, task.prompt) == (ASKING.media, ASKING.prompt)
    assert said[0].endswith("3 rows, answers of the type number, exact_text; asked as 'answer_only'")
    assert said[1:] == ["note: asked as stage 'rl' of run 'x'"]
    samples, whole = task_samples(task, tmp_path, None)
    assert (len(samples), whole) == (3, 3)


def test_rows_of_one_type_have_its_primary_metric(tmp_path: Path):
    write_parquet(tmp_path / FILE)
    settings = ["media_folder=pictures", "answer_type=exact_text", "columns={prompt: problem, answer: solution, images: image}"]
    source = rows_config(tmp_path / FILE, settings, media_root=None, model=None).stages[0].source
    (task,) = rows_suite(source, tmp_path, ASKING, say=lambda _: None).tasks
    assert (task.id, task.primary, task.metrics) == ("val", "exact", metrics_of("exact_text"))
