"""A suite on a real tiny model and real videos, from folder to table."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from vlmrl.errors import ConfigError, DataError
from vlmrl.evals.records import read_records
from vlmrl.evals.run import evaluate_suite, model_folder
from vlmrl.rollout.engine_hf import HFEngine

SUITE = """
id: tiny
version: 1
data_root: toy
batch_prompts: 2
tasks:
  - id: grounding
    source: test.jsonl
    template: think_or_not
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
    result = evaluate_suite(model, suite, tmp_path / "out", data_root=world, device="cpu", progress=lambda *a: seen.append(a))
    records = read_records(tmp_path / "out" / "grounding.jsonl")
    assert seen == [("grounding", 0, 3), ("grounding", 2, 3), ("grounding", 3, 3)]
    assert records == result.records["grounding"]
    rows = [json.loads(line) for line in (world / "test.jsonl").read_text().splitlines()[:3]]
    assert [(r.sample_id, list(r.gold)) for r in records] == [(row["id"], row["gt"]["time"]) for row in rows]
    assert all(1 <= r.n_out <= 6 and r.stage == model.name and r.fingerprint == result.fingerprint for r in records)
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
