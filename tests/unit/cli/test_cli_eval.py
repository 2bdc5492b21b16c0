"""`vlmrl eval`, `compare` and `suites` on a real tiny model and real videos."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vlmrl.cli import app
from vlmrl.errors import ConfigError, VlmrlError
from vlmrl.evals.score.records import read_records
from vlmrl.rollout.engine_hf import HFEngine

SUITE = """
id: tiny
version: 1
data_root: toy
batch_prompts: 2
tasks:
  - {id: first, source: test.jsonl, answer_format: answer_only, answer_type: time_span, max_new_tokens: 6, limit: 4, media: &m1}
  - {id: second, source: test.jsonl, answer_format: think, answer_type: time_span, max_new_tokens: 6, limit: 2, media: &m2}
""".replace("&m1", "{min_pixels: 3136, max_pixels: 4704, max_frames: 32}").replace(
    "&m2", "{min_pixels: 3136, max_pixels: 4704, max_frames: 32}"
)


@pytest.fixture
def place(tiny_files: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path, Path]:
    """A run with a model, a suite, and the data root."""
    model, world = tiny_files
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(model, run / "final")
    suite = tmp_path / "tiny.yaml"
    suite.write_text(SUITE)
    return run, suite, world


def invoke(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, VlmrlError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_eval_writes_records_tables_and_a_report_and_goes_on(place, monkeypatch):
    run, suite, world = place
    text = invoke("eval", run / "final", "--suite", suite, "--data-root", world, "--device", "cpu")
    out = run / "suites" / "final-tiny"
    assert str(out) in text
    assert "tiny v1: first" in text
    records = read_records(out / "first.jsonl")
    assert [r.k for r in records] == [0, 0, 0, 0]
    assert {p.name for p in out.iterdir()} >= {"first.jsonl", "second.jsonl", "summary.json", "results.md", "report.html", "frames"}
    page = (out / "report.html").read_text()
    assert records[0].sample_id in page
    assert json.loads((out / "summary.json").read_text())["tasks"]["second"]["n"] == 2

    def generate(*args, **kwargs):
        raise AssertionError("generated again")

    monkeypatch.setattr(HFEngine, "generate", generate)
    invoke("eval", run / "final", "--suite", suite, "--data-root", world, "--device", "cpu")
    invoke("eval", run / "final", "--suite", suite, "--data-root", world, "--rescore")
    assert read_records(out / "first.jsonl") == records


def test_one_task_with_several_answers(place, tmp_path):
    run, suite, world = place
    given = ["--suite", suite, "--data-root", world, "--device", "cpu", "--out", tmp_path / "out"]
    text = invoke("eval", run, *given, "--task", "first", "--samples", "2", "--temperature", "1", "--limit", "2", "--seed", "3")
    assert "pass@2" in text
    assert [(r.k, r.seed) for r in read_records(tmp_path / "out" / "first.jsonl")] == [(0, 3), (1, 3)] * 2
    assert not (tmp_path / "out" / "second.jsonl").exists()


def test_compare_ends_with_one_only_if_it_got_worse(place, tmp_path):
    run, suite, world = place
    for name in "ab":
        invoke("eval", run, "--suite", suite, "--data-root", world, "--device", "cpu", "--out", tmp_path / name)
    invoke("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c")
    assert {p.name for p in (tmp_path / "c").iterdir()} == {"comparison.json", "comparison.md", "comparison.html"}


def test_mistakes(place, tmp_path):
    run, suite, world = place
    with pytest.raises(ConfigError, match="--task: suite 'tiny' has no task 'frist'; did you mean 'first'"):
        invoke("eval", run, "--suite", suite, "--data-root", world, "--task", "frist")
    with pytest.raises(ConfigError, match="--device: expected one of auto, cpu, cuda, got 'gpu'"):
        invoke("eval", run, "--suite", suite, "--device", "gpu")
    with pytest.raises(ConfigError, match="no such suite"):
        invoke("eval", run, "--suite", "toy_vidoe")
    with pytest.raises(ConfigError, match="no such file or folder"):
        invoke("eval", tmp_path / "none", "--suite", suite)
    with pytest.raises(ConfigError, match="--endpoint and --served-model belong together"):
        invoke("eval", run, "--suite", suite, "--endpoint", "http://127.0.0.1:1/v1")
    with pytest.raises(ConfigError, match="--rescore asks no model"):
        invoke("eval", run, "--suite", suite, "--rescore", "--endpoint", "http://127.0.0.1:1/v1", "--served-model", "m")
    with pytest.raises(ConfigError, match="--engine: expected one of hf, vllm, got 'vlm'"):
        invoke("eval", run, "--suite", suite, "--engine", "vlm")
    with pytest.raises(ConfigError, match="--engine vllm answers in this process; leave out --rescore"):
        invoke("eval", run, "--suite", suite, "--engine", "vllm", "--rescore")
    with pytest.raises(ConfigError, match="--via lmms asks as the suite says; leave out --engine"):
        invoke("eval", run, "--suite", suite, "--engine", "vllm", "--via", "lmms")
    with pytest.raises(ConfigError, match=r"--suite: which one.* or --rows FILE"):
        invoke("eval", run)
    with pytest.raises(ConfigError, match="--rows asks a file of rows without a suite; leave out --suite"):
        invoke("eval", run, "--suite", suite, "--rows", world / "test.jsonl")
    with pytest.raises(ConfigError, match="'turns=last': KEY=VALUE belong to --rows"):
        invoke("eval", run, "--suite", suite, "turns=last")
    with pytest.raises(ConfigError, match="--task: the rows of --rows are one task"):
        invoke("eval", run, "--rows", world / "test.jsonl", "--task", "first")


def test_rows_of_our_own_shape_need_no_key(place, tmp_path):
    run, _, world = place
    text = invoke("eval", run, "--rows", world / "test.jsonl", "--limit", "2", "--max-new-tokens", "4", "--device", "cpu")
    assert "answers of the type time_span; asked as 'think'" in text
    records = read_records(tmp_path / "suites" / "run-test" / "test.jsonl")
    assert [(r.answer_type, r.settings["max_new_tokens"]) for r in records] == [("time_span", 4)] * 2


def test_suites_are_listed_with_what_makes_their_rows(tmp_path):
    assert "toy_video" in invoke("list", "suites")
    assert "toy_shell" in invoke("list", "suites", "toy_video")
    with pytest.raises(VlmrlError, match=r"the rows of 1 task\(s\) are not below"):
        invoke("list", "suites", "toy_video", "--data-root", tmp_path)
