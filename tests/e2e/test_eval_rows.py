"""A Parquet file of pictures in rows, evaluated as a person has it: by `--rows`, and by a suite beside it, with the same answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command import vlmrl
from tests.support.embedded_rows import SOURCE, write_parquet
from vlmrl.evals.score.records import read_records

KEYS = ["media_folder=pictures", "answer_type=exact_text", "columns={prompt: problem, answer: solution, images: image}"]


@pytest.fixture(scope="module")
def place(tiny_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and `data/val.parquet`."""
    folder = tmp_path_factory.mktemp("rows")
    shutil.copytree(tiny_files[0], folder / "model")
    (folder / "data").mkdir()
    write_parquet(folder / "data" / "val.parquet")
    return folder


def test_rows_without_a_suite_and_a_suite_beside_them(place: Path):
    done = vlmrl("eval", "model", "--rows", "data/val.parquet", *KEYS, "--max-new-tokens", "6", "--device", "cpu", cwd=place)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    assert "3 rows, answers of the type exact_text; asked as 'think'" in done.stdout
    assert "no recipe beside model: media and prompts are those of the defaults" in done.stdout
    assert "--recipe" not in done.stdout
    out = place / "suites" / "model-val"
    assert {file.name for file in out.iterdir()} >= {"val.jsonl", "summary.json", "results.md", "report.html"}
    alone = read_records(out / "val.jsonl")
    assert [(r.answer_type, r.cluster.split("/")[0], len(r.text) > 0) for r in alone] == [("exact_text", "pictures", True)] * 3

    task: dict[str, Any] = {"id": "val", "source": {"path": "val.parquet", **SOURCE}, "answer_format": "think"}
    task |= {"answer_type": "exact_text", "max_new_tokens": 6}
    (place / "data" / "mine.yaml").write_text(yaml.safe_dump({"id": "mine", "version": 1, "tasks": [task]}))
    done = vlmrl("eval", "model", "--suite", "data/mine.yaml", "--device", "cpu", cwd=place, variables={"VLMRL_DATA": ""})
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    assert read_records(place / "suites" / "model-mine" / "val.jsonl") == alone
    done = vlmrl("compare", "suites/model-val", "suites/model-mine", cwd=place)
    assert done.returncode == 0, done.stderr + done.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["suite"]["id"], summary["suite"]["tasks"][0]["source"]["media_folder"]) == ("val", "pictures")


def test_what_nobody_says_is_found_in_the_rows(place: Path):
    out = ["--out", "found", "--max-new-tokens", "6", "--device", "cpu"]
    done = vlmrl("eval", "model", "--rows", "data/val.parquet", *out, cwd=place)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    assert "media_folder: pictures  (pictures stand in the rows" in done.stdout
    assert len(read_records(place / "found" / "val.jsonl")) == 3


def test_what_is_missing_is_said_in_keys_that_there_are(place: Path):
    (place / "data" / "odd.jsonl").write_text('{"a": 1}\n')
    done = vlmrl("eval", "model", "--rows", "data/odd.jsonl", "--device", "cpu", cwd=place)
    assert done.returncode != 0
    assert "no column of the rows looks like the question; they have a; say which it is: columns=" in done.stderr
    done = vlmrl("eval", "model", "--rows", "data/val.parquet", "media_foldr=x", cwd=place)
    assert "media_foldr" in done.stderr
    assert "did you mean 'media_folder'?" in done.stderr
    done = vlmrl("eval", "model", "--rows", "data/none.parquet", cwd=place)
    assert "none.parquet" in done.stderr
    assert done.returncode == 65
