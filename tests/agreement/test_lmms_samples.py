"""A samples file that lmms-eval itself wrote, through `simple_evaluate` and its tracker, with a model that answers from a list."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

pytest.importorskip("lmms_eval", reason="needs lmms-eval 0.7")

from vlmrl.extras.bridge.importers.lmms_eval import NAME, import_lmms_samples
from vlmrl.types import Sample

TEXTS = {0: "<think>One and one.\n\nSo two.</think><answer>2</answer>", 1: "<answer>7</answer>", 2: "<think>never ends"}
GOLD = {0: "2", 1: "4", 2: "5"}
UTILS = """
def process_results(doc, results):
    return {"acc": float("<answer>" + doc["answer"] in results[0]), "parsed": {"score": 1, "text": results[0]}}

def doc_to_messages(doc, lmms_eval_specific_kwargs=None):
    return [{"role": "user", "content": [{"type": "text", "text": doc["question"]}]}]

def doc_to_visual(doc):
    return []
"""
TASK = """
task: vlmrl_sums
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_messages: !function utils.doc_to_messages
doc_to_visual: !function utils.doc_to_visual
doc_to_text: "{{question}}"
doc_to_target: answer
process_results: !function utils.process_results
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
generation_kwargs: {max_new_tokens: 64, temperature: 0, do_sample: false, until: []}
metadata: {version: 3}
"""


def model():
    from lmms_eval.api.instance import GenerationResult, TokenCounts
    from lmms_eval.api.model import lmms

    class Scripted(lmms):
        is_simple = False

        def __init__(self):
            super().__init__()
            self.batch_size = 1

        def generate_until(self, requests):
            ids = [request.args[3] for request in requests]
            return [GenerationResult(TEXTS[n], TokenCounts(input_tokens=10 + n, output_tokens=20 + n)) for n in ids]

        def loglikelihood(self, requests):
            raise NotImplementedError

        def generate_until_multi_round(self, requests):
            raise NotImplementedError

    return Scripted()


@pytest.fixture
def samples_file(tmp_path, monkeypatch):
    """The samples and results of one run, as its tracker writes them."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from lmms_eval import evaluator
    from lmms_eval.loggers import EvaluationTracker
    from lmms_eval.tasks import TaskManager

    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = [{"question": f"Sum {n}?", "answer": GOLD[n]} for n in TEXTS]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "utils.py").write_text(UTILS)
    (folder / "vlmrl_sums.yaml").write_text(TASK % (folder / "sums.jsonl"))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    tasks = list(manager.load_task_or_group(["vlmrl_sums"], task_type="chat").values())
    tracker = EvaluationTracker(output_path=str(tmp_path / "out"))
    tracker.general_config_tracker.log_experiment_args("scripted", "pretrained=scripted", "", "", False)
    results = evaluator.simple_evaluate(
        model=model(),
        tasks=tasks,
        task_manager=manager,
        bootstrap_iters=0,
        log_samples=True,
        datetime_str="20260101_120000",
        process_docs_parallel=1,
    )
    assert results is not None
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples, datetime_str="20260101_120000")
    tracker.save_results_samples(task_name="vlmrl_sums", samples=samples["vlmrl_sums"])
    (path,) = [p for p in (tmp_path / "out").rglob("*.jsonl") if NAME.fullmatch(p.name)]
    return path


def test_a_file_of_lmms_eval_itself(samples_file):
    rows = {
        str(n): Sample(id=f"r{n}", task="sums", answer_type="number", question="?", media=(), answer=gold, gt={})
        for n, gold in GOLD.items()
    }
    imported = import_lmms_samples(samples_file, answer_format="think", samples=rows, version=version("lmms-eval"))
    found = [(r.sample_id, r.text, r.answer, r.status) for r in imported.records]
    assert found == [("r0", TEXTS[0], "2", "ok"), ("r1", TEXTS[1], "7", "ok"), ("r2", TEXTS[2], None, "truncated")]
    assert [(r.scores["upstream/acc"], r.scores["upstream/parsed"], r.scores["exact"]) for r in imported.records] == [
        (1.0, 1.0, 1.0),
        (0.0, 1.0, 0.0),
        (0.0, 1.0, 0.0),
    ]
    assert [(r.n_in, r.n_out, r.think.has, r.format_ok) for r in imported.records] == [
        (10, 20, True, True),
        (11, 21, False, False),
        (12, 22, False, False),
    ]
    assert {r.task for r in imported.records} == {"vlmrl_sums"}
    assert {r.harness.startswith("lmms-eval 0.7") for r in imported.records} == {True}
    assert {r.task_version for r in imported.records} == {3}
    assert dict(imported.records[0].settings) == {"max_new_tokens": 64, "temperature": 0.0, "top_p": 1.0}
    assert len({r.prompt_ids_hash for r in imported.records}) == 3
    assert imported.notes == ()
    bare = import_lmms_samples(samples_file, answer_format="think", samples=rows)
    # it states the branch of the working directory where that is a git checkout, else its own version
    assert {r.harness for r in bare.records} <= {"unknown version of lmms-eval", f"lmms-eval {version('lmms-eval')}"}
