"""Evaluation during a run changes nothing of it, keeps what is best, and cannot end it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import runs
from vlmrl.config.schema import Config
from vlmrl.errors import ConfigError, EvaluationError
from vlmrl.evals.score.records import read_records
from vlmrl.run.evaluate import eval_problems
from vlmrl.run.tracking import read_metrics

SUITE = """
id: watched
version: 1
data_root: {root}
batch_prompts: 2
tasks:
  - id: spans
    source: {source}
    answer_format: answer_only
    answer_type: time_span
    max_new_tokens: 6
    samples: 2
    temperature: 1.0
    limit: 4
    media: {{min_pixels: 3136, max_pixels: 4704, max_frames: 32}}
"""


def config(files: tuple[Path, Path], root: Path, **evaluation: Any) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    out = runs.small_config(*files, root)
    out["eval"] = evaluation
    return out


def weights(cfg: dict[str, Any]) -> bytes:
    return (runs.run_dir(cfg) / "final" / "model.safetensors").read_bytes()


def test_a_suite_within_training_changes_no_bit_of_it_and_the_best_weights_are_kept(tiny_files: tuple[Path, Path], tmp_path: Path):
    suite = tmp_path / "watched.yaml"
    suite.write_text(SUITE.format(root=tiny_files[1], source="test.jsonl"))
    plain = config(tiny_files, tmp_path / "plain")
    watched = config(tiny_files, tmp_path / "watched", suite=str(suite), every=2, best="spans/tokens")
    assert runs.run(plain) == runs.run(watched) == 0
    assert weights(plain) == weights(watched)
    path = runs.run_dir(watched)
    lines = [line for line in read_metrics(path / "metrics.jsonl") if "eval/spans/tokens" in line]
    assert [line["stage"] for line in lines] == ["base", "sft@2", "sft", "rl@2", "rl"]
    assert all(line["eval/failed"] == 0 and line["eval/spans/rows"] == 8 and "eval/spans/pass@2" in line for line in lines)
    records = read_records(path / "eval" / "suite" / "rl" / "spans.jsonl")
    assert [r.k for r in records] == [0, 1] * 4
    best = json.loads((path / "eval" / "best.json").read_text())
    values = {line["stage"]: line["eval/spans/tokens"] for line in lines}
    assert best["value"] == max(values.values())
    assert best["stage"] == next(name for name, value in values.items() if value == best["value"])
    assert [p.name for p in (path / "best").iterdir()] == [best["stage"]]
    assert (path / "best" / best["stage"] / "model.safetensors").is_file()


def test_an_evaluation_that_fails_is_reported_and_training_goes_on(tiny_files: tuple[Path, Path], tmp_path: Path):
    suite = tmp_path / "watched.yaml"
    suite.write_text(SUITE.format(root=tiny_files[1], source="test.jsonl"))
    cfg = config(tiny_files, tmp_path / "run", suite=str(suite), source={"path": "test.jsonl"}, limit=2, max_new_tokens=4)
    child = runs.start(cfg, "eval.record@1:enospc")
    child.join(180)
    assert child.exitcode == EvaluationError.exit_code, "the run must not end as if all its numbers were there"
    lines = [line for line in read_metrics(runs.run_dir(cfg) / "metrics.jsonl") if "eval/failed" in line]
    assert [line["eval/failed"] for line in lines] == [1.0, 0.0, 0.0]
    assert (runs.run_dir(cfg) / "FINISHED").exists()
    assert (runs.run_dir(cfg) / "final" / "model.safetensors").is_file()
    assert "the evaluation of base failed: the report lacks its numbers" in (tmp_path / "run" / "error.txt").read_text()
    assert runs.run(cfg) == EvaluationError.exit_code, "and the same command says it again"


def test_time_is_limited_and_what_is_answered_counts(tiny_files: tuple[Path, Path], tmp_path: Path):
    cfg = config(tiny_files, tmp_path / "run", source={"path": "test.jsonl"}, limit=6, max_new_tokens=4, batch_prompts=2, max_seconds=1e-9)
    assert runs.run(cfg) == 0
    rows = [line["eval/rows"] for line in read_metrics(runs.run_dir(cfg) / "metrics.jsonl") if "eval/rows" in line]
    assert rows == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"source": {"path": "test.jsonl"}, "best": "moiu"}, "eval.best: unknown metric 'moiu'; did you mean 'miou'?"),
        ({"source": {"path": "test.jsonl"}, "best": "spans/miou"}, "eval.best: no task 'spans' (eval.suite is not given)"),
        ({"suite": "SUITE", "best": "miou"}, "eval.best: 'miou' is of the rows of eval.source, which is not given"),
        ({"suite": "SUITE", "best": "span/miou"}, "eval.best: no task 'span'; did you mean 'spans'? (suite 'watched' has: spans)"),
        ({"suite": "SUITE", "best": "spans/miou"}, ""),
        ({"suite": "canry"}, "canry: no such suite; did you mean 'canary'?"),
    ],
)
def test_mistakes_are_named_before_anything_runs(tmp_path: Path, evaluation: dict[str, Any], message: str):
    suite = tmp_path / "watched.yaml"
    suite.write_text(SUITE.format(root=tmp_path, source="test.jsonl"))
    given = {key: str(suite) if value == "SUITE" else value for key, value in evaluation.items()}
    cfg = Config.model_validate(runs.small_config(tmp_path, tmp_path, tmp_path) | {"eval": given})
    try:
        found = "\n".join(eval_problems(cfg))
    except ConfigError as error:
        found = str(error)
    assert (message in found) if message else found == ""
