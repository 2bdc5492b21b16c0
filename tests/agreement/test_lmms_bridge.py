"""Native evaluation, the bridge in this process and in a child, and lmms-eval's own command line give the same texts and numbers."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmms_eval", reason="needs lmms-eval (docs/lmms-eval.md)")

from tests.support import lmms
from vlmrl.evals.ask.models import LocalModel
from vlmrl.evals.ask.run import Changes, SuiteResult, evaluate_suite
from vlmrl.evals.ask.suite import Suite
from vlmrl.evals.score.records import Record
from vlmrl.extras.bridge.functions import OF_GENERATION
from vlmrl.extras.bridge.options import Options
from vlmrl.extras.bridge.run import BridgeResult, evaluate_suite_via_lmms, evaluate_via_lmms, read_result
from vlmrl.extras.bridge.task_files import write_yaml

TASKS = ("spans", "boxes", "choices")
NAMES = [f"vlmrl_{task}" for task in TASKS]


@dataclasses.dataclass(frozen=True)
class Three:
    """A checkpoint, three tasks, and what native evaluation says."""

    checkpoint: Path
    suite: Suite
    root: Path
    tasks: Path
    native: SuiteResult


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Three:
    folder = tmp_path_factory.mktemp("three")
    root = folder / "data"
    suite = lmms.make_rows(root)
    checkpoint = lmms.make_checkpoint(folder, suite, root)
    native = evaluate_suite(checkpoint, root / "suite.yaml", folder / "native", data_root=root, device="cpu")
    for task in suite.tasks:
        write_yaml(task, root, folder / "tasks")
    return Three(checkpoint, suite, root, folder / "tasks", native)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream keeps the tables that it makes of documents; not in the home of whoever runs the tests."""
    monkeypatch.setenv("LMMS_EVAL_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")


def plain(record: Record) -> Record:
    """A record without what tells that lmms-eval made it."""
    scores = {name: value for name, value in record.scores.items() if not name.startswith("upstream/")}
    return dataclasses.replace(record, scores=scores, harness="")


def shown(native: SuiteResult, task: str) -> dict[str, float]:
    """Native means of the metrics that upstream shows."""
    return {name: interval.mean for name, interval in native.summaries[task].metrics.items() if name not in {*OF_GENERATION, "score"}}


def assert_same(result: BridgeResult, native: SuiteResult) -> None:
    assert set(result.records) == set(TASKS)
    for task in TASKS:
        assert [plain(r) for r in result.records[task]] == [plain(r) for r in native.records[task]]
        assert result.summaries[task] == native.summaries[task]
        assert {name.removeprefix("upstream/"): value for name, value in result.upstream[task].items()} == pytest.approx(
            shown(native, task), abs=1e-15, rel=0
        )
        assert all(r.harness == "lmms-eval 0.7.3" for r in result.records[task])
        assert all(r.scores["upstream/parse_rate"] == float(r.status == "ok") for r in result.records[task])


def test_the_checkpoint_is_right_and_wrong_so_that_agreement_means_something(three: Three) -> None:
    found = {task: [max(r.scores.values()) for r in three.native.records[task]] for task in TASKS}
    assert all(len(values) == lmms.ROWS and 0 < sum(values) < lmms.ROWS for values in found.values()), found


def test_bridge_in_this_process_is_native_evaluation(three: Three, tmp_path: Path) -> None:
    model = LocalModel.load(three.checkpoint, device="cpu")
    model.name = three.native.model
    result = evaluate_via_lmms(
        model,
        NAMES,
        fingerprint=model.fingerprint,
        out=tmp_path,
        include_path=three.tasks,
        options=Options(batch_prompts=three.suite.batch_prompts),
        module=model.policy.model,
    )
    assert_same(result, three.native)
    assert read_result(tmp_path).json() == result.json()
    assert read_result(tmp_path).records == result.records


@pytest.mark.slow
def test_bridge_in_a_child_is_native_evaluation_and_leaves_this_process_alone(three: Three, tmp_path: Path) -> None:
    before = set(sys.modules)
    result = evaluate_suite_via_lmms(three.checkpoint, three.suite, out=tmp_path, data_root=three.root, device="cpu")
    assert {name for name in set(sys.modules) - before if name.startswith("lmms_eval")} == set()
    assert_same(result, three.native)


@pytest.mark.slow
def test_a_limit_asks_the_same_rows(three: Three, tmp_path: Path) -> None:
    native = evaluate_suite(
        three.checkpoint, three.root / "suite.yaml", tmp_path / "native", data_root=three.root, device="cpu", changes=Changes(limit=2)
    )
    bridge = evaluate_suite_via_lmms(three.checkpoint, three.suite, out=tmp_path / "lmms", data_root=three.root, device="cpu", limit=2)
    for task in TASKS:
        assert len(native.records[task]) == 2
        assert [(r.sample_id, r.text) for r in bridge.records[task]] == [(r.sample_id, r.text) for r in native.records[task]]
    firsts = {task: [r.sample_id for r in three.native.records[task]][:2] for task in TASKS}
    assert any([r.sample_id for r in native.records[task]] != firsts[task] for task in TASKS), "the case must tell the two rules apart"


def test_command_line_of_lmms_eval_is_native_evaluation(three: Three, tmp_path: Path) -> None:
    raw, out = tmp_path / "raw.jsonl", tmp_path / "out"
    command = [sys.executable, "-m", "vlmrl.extras.bridge", "--model", "vlmrl", "--tasks", ",".join(NAMES), "--batch_size", "2"]
    command += ["--model_args", f"pretrained={three.checkpoint},device=cpu,raw={raw}", "--include_path", str(three.tasks)]
    command += ["--log_samples", "--output_path", str(out), "--verbosity", "DEBUG"]
    # Not in the checkout, where old metadata (`vlmrl.egg-info`) would hide the entry point of what is installed.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    results: dict[str, Any] = json.loads(one(out, "_results.json").read_text())["results"]
    texts = [json.loads(line) for line in raw.read_text().splitlines()]
    for task in TASKS:
        native = three.native.records[task]
        found = {name.partition(",")[0]: value for name, value in results[f"vlmrl_{task}"].items() if name.endswith(",none")}
        numbers = {name: value for name, value in found.items() if "_stderr" not in name and name != "vlmrl_error"}
        assert numbers == pytest.approx(shown(three.native, task), abs=1e-15, rel=0)
        assert found["vlmrl_error"] == 0
        samples = [json.loads(line) for line in one(out, f"samples_vlmrl_{task}.jsonl").read_text().splitlines()]
        shown_texts = [s["filtered_resps"] for s in sorted(samples, key=lambda s: s["doc_id"])]
        assert shown_texts == [r.text for r in native]  # upstream writes a list of one text as the text
        own = sorted((row for row in texts if row["task"] == f"vlmrl_{task}"), key=lambda row: row["doc_id"])
        assert [(row["text"], row["n_in"], row["n_out"]) for row in own] == [(r.text, r.n_in, r.n_out) for r in native]


def one(folder: Path, ending: str) -> Path:
    found = [path for path in folder.rglob("*") if path.name.endswith(ending)]
    assert len(found) == 1, (ending, [str(path) for path in folder.rglob("*")])
    return found[0]
