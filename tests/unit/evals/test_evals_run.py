"""A suite on a real tiny model and real videos, from folder to table."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.evals.test_evals_records import make_prompt
from vlmrl.errors import ConfigError, DataError, StorageError
from vlmrl.evals.ask.models import LocalModel, RecordedModel, model_folder
from vlmrl.evals.ask.run import Changes, EvalCallbacks, count_notes, evaluate_model, evaluate_suite, subset
from vlmrl.evals.ask.suite import load_suite
from vlmrl.evals.score.records import read_records
from vlmrl.policy.load import load_processor
from vlmrl.rollout.engine_hf import HFEngine

SUITE = """
id: tiny
version: 1
data_root: toy
batch_prompts: 2
tasks:
  - id: grounding
    source: test.jsonl
    answer_format: think_or_not
    answer_type: time_span
    max_new_tokens: 6
    limit: 3
    media: {min_pixels: 3136, max_pixels: 4704, max_frames: 32}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SUITE)
    return path


def test_evaluate_suite_then_again_from_its_records(tiny_files, suite, tmp_path, monkeypatch):
    model, world = tiny_files
    seen: list[tuple[str, int, int]] = []
    result = evaluate_suite(
        model, suite, tmp_path / "out", data_root=world, device="cpu", watch=EvalCallbacks(progress=lambda *a: seen.append(a))
    )
    records = read_records(tmp_path / "out" / "grounding.jsonl")
    assert seen == [("grounding", 0, 3), ("grounding", 2, 3), ("grounding", 3, 3)]
    assert records == result.records["grounding"]
    rows = {row["id"]: row for row in map(json.loads, (world / "test.jsonl").read_text().splitlines())}
    chosen = sorted(rows, key=lambda name: hashlib.sha256(name.encode()).digest())[:3]
    assert [r.sample_id for r in records] == [name for name in rows if name in chosen]
    assert all(list(r.gold) == rows[r.sample_id]["gt"]["time"] for r in records)
    assert all(1 <= r.n_out <= 6 and r.model == model.name and r.fingerprint == result.fingerprint for r in records)
    saved = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert saved["tasks"]["grounding"]["n"] == 3
    assert saved["suite"]["tasks"][0]["media"]["max_pixels"] == 4704
    assert "| model | 3 |" in (tmp_path / "out" / "results.md").read_text()
    console = Console(file=io.StringIO(), width=240)
    console.print(result)
    assert "tiny v1: grounding" in console.file.getvalue()

    def generate(*args, **kwargs):
        raise AssertionError("generated again")

    monkeypatch.setattr(HFEngine, "generate", generate)
    again = evaluate_suite(model, suite, tmp_path / "out", data_root=world, device="cpu")
    assert again.records == result.records
    assert again.summaries == result.summaries


def test_the_toy_world_must_be_given(tiny_files, suite, tmp_path):
    with pytest.raises(ConfigError, match="data_root is 'toy'; say where the generated world is"):
        evaluate_suite(tiny_files[0], suite, tmp_path / "out")


def test_rows_that_cannot_be_used_are_named_and_not_left_out(tiny_files, suite, tmp_path):
    model, world = tiny_files
    lines = [json.loads(line) for line in (world / "test.jsonl").read_text().splitlines()[:3]]
    lines[1]["video"] = "videos/test/none.mp4"
    data = tmp_path / "data"
    data.mkdir()
    (data / "videos").symlink_to(world / "videos")
    (data / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError) as caught:
        evaluate_suite(model, suite, tmp_path / "out", data_root=data, device="cpu")
    assert "rows cannot be evaluated" in str(caught.value)
    assert f"row '{lines[1]['id']}' ({data / 'test.jsonl'}:2)" in str(caught.value)


def test_which_folder_is_meant(tiny_files, tmp_path):
    model, _ = tiny_files
    assert model_folder(model) == model
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "final").symlink_to(model)
    assert model_folder(tmp_path / "run") == tmp_path / "run" / "final"
    with pytest.raises(ConfigError, match=r"no model there \(no config\.json\)"):
        model_folder(tmp_path)


def test_several_answers_and_scoring_them_again_without_weights(tiny_files, suite, tmp_path):
    model, world = tiny_files
    changes = Changes(samples=2, temperature=1.0, limit=2, seed=5)
    checked = load_suite(suite)
    local = LocalModel.load(model, device="cpu")
    first = evaluate_model(local, checked, tmp_path / "out", data_root=world, changes=changes)
    records = first.records["grounding"]
    assert [r.k for r in records] == [0, 1, 0, 1]
    assert {r.seed for r in records} == {5}
    assert first.summaries["grounding"].n == 2
    assert "pass@2" in first.summaries["grounding"].metrics
    assert "pass@2" in first.markdown()
    assert first.notes == ("grounding: 2 of 12 rows (limit); its numbers are not comparable with published ones",)
    recorded = RecordedModel(name="model", bundle=load_processor(str(model)))
    again = evaluate_model(recorded, checked, tmp_path / "out", data_root=world, changes=changes)
    assert [r.line() for r in again.records["grounding"]] == [r.line() for r in records]
    with pytest.raises(StorageError, match="no evaluation records"):
        evaluate_model(recorded, checked, tmp_path / "other", data_root=world, changes=changes)


def test_rows_that_are_not_there_say_how_they_are_made(tiny_files, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        SUITE.replace("source: test.jsonl", "source: charades_sta/rows/test.jsonl\n    prepare: {dataset: charades_sta, split: test}")
    )
    with pytest.raises(DataError) as caught:
        evaluate_suite(tiny_files[0], path, tmp_path / "out", data_root=tmp_path, device="cpu")
    expected = f"python data/charades_sta/prepare.py ROOT {tmp_path}/charades_sta/rows --split test"
    assert expected in str(caught.value)


def test_subsets_nest_and_do_not_depend_on_the_order_of_the_file():
    samples = [make_prompt(str(n)).sample for n in range(40)]
    small, large = subset(samples, 8), subset(samples, 16)
    assert [s for s in large if s in small] == small
    assert [s.id for s in samples if s in small] == [s.id for s in small]
    assert {s.id for s in subset(samples[::-1], 8)} == {s.id for s in small}
    assert subset(samples, None) == subset(samples, 99) == samples


def test_what_cannot_be_compared_is_said(suite):
    task = load_suite(suite).tasks[0].model_copy(update={"official_count": 100})
    assert count_notes(task, 100, 100) == []
    assert "99 rows, the official set has 100" in count_notes(task, 99, 99)[0]
    assert "10 of 100 rows (limit)" in count_notes(task, 10, 100)[0]


def test_rows_in_another_frame_are_refused(tiny_files, suite, tmp_path):
    model, world = tiny_files
    rows = [json.loads(line) | {"meta": {"frame": "pixel"}} for line in (world / "test.jsonl").read_text().splitlines()[:3]]
    data = tmp_path / "data"
    data.mkdir()
    (data / "videos").symlink_to(world / "videos")
    (data / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite.write_text(SUITE.replace("limit: 3", "limit: 3\n    frame: norm1000"))
    with pytest.raises(DataError, match="coordinates in 'pixel', the task's are in 'norm1000'"):
        evaluate_suite(model, suite, tmp_path / "out", data_root=data, device="cpu")
