"""What goes wrong with lmms-eval when nothing is done about it, and that the bridge does something about it.

Each test first shows the trap in the unguarded form. Traps that cannot reach us, and why:

- tasks given as dictionaries load the simple layout even for chat models: the bridge passes names only;
- `model_args` as a dictionary crashes: the bridge passes an object, the command line passes text;
- samples in the order of ranks: several ranks are refused in this process; `join.in_order` is tested with the unit tests;
- grounding aggregators that merge equal captions belong to upstream's tasks; ours aggregate by mean over rows.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lmms_eval", reason="needs lmms-eval (docs/lmms-eval.md)")

from vlmrl.errors import ConfigError
from vlmrl.evals.ask.engines import Generation
from vlmrl.evals.ask.tasks import Task, with_defaults
from vlmrl.extras.bridge import compat, functions, run
from vlmrl.extras.bridge.options import Options
from vlmrl.extras.bridge.requests import cut, stop_strings
from vlmrl.extras.bridge.run import BridgeResult, evaluate_via_lmms
from vlmrl.extras.bridge.task_files import write_yaml
from vlmrl.extras.toy.model import build_model
from vlmrl.extras.toy.tasks import tokenizer_corpus
from vlmrl.metrics.math import equivalent
from vlmrl.policy.load import load_processor
from vlmrl.policy.model import ProcessorBundle
from vlmrl.types import GenerationSettings, Prompt

UTILS = """
def target(doc):
    return doc["answer"]


def results(doc, texts):
    return {"acc": float(texts[0] == doc["answer"]), "odd": float("nan")}


def best(items):
    return max(items)
"""
YAML = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: docs.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: !function utils.target
process_results: !function utils.results
metric_list:
  - {{metric: acc, aggregation: !function utils.best, higher_is_better: true}}
  - {{metric: odd, aggregation: mean, higher_is_better: true}}
generation_kwargs: {{max_new_tokens: 4}}
"""


@dataclass
class Scripted:
    """A model whose answers are a function of the question and the number of the answer."""

    bundle: ProcessorBundle
    says: Callable[[str, int], str]
    fingerprint: str = "f"
    engine_name: str = "hf"
    name: str = "scripted"
    calls: int = 0

    def engine(self, task: Task, store: Any, records: Path) -> Any:
        return self

    def generate(self, prompts: Sequence[Prompt], settings: GenerationSettings, *, samples: int, seed: int) -> list[list[Generation]]:
        self.calls += len(prompts)
        random.random()
        return [[Generation(text=self.says(p.sample.question, k), n_out=1, finish="stop") for k in range(samples)] for p in prompts]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> ProcessorBundle:
    folder = tmp_path_factory.mktemp("model") / "model"
    build_model(folder, seed=0, corpus=tokenizer_corpus([]))
    return load_processor(str(folder))


@pytest.fixture(autouse=True)
def _quiet(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LMMS_EVAL_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    with compat.preserved():
        yield


def make_task(folder: Path, name: str, count: int) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    (place / "utils.py").write_text(UTILS)
    (place / f"{name}.yaml").write_text(YAML.format(name=name))
    docs = [{"question": f"{name} {i}", "answer": f"a{i}"} for i in range(count)]
    (place / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    return folder


def unguarded(model: Any, tasks: list[str], folder: Path, **more: Any) -> dict[str, Any]:
    from lmms_eval import evaluator
    from lmms_eval.tasks import TaskManager

    manager = TaskManager("WARNING", include_path=[str(folder)], include_defaults=False)
    more = {"bootstrap_iters": 0, "distributed_executor_backend": "torchrun", **more}
    return evaluator.simple_evaluate(model=model, tasks=tasks, task_manager=manager, **more)


def bridge(model: Scripted) -> Any:
    from vlmrl.extras.bridge.model import VlmrlBridge

    return VlmrlBridge(model, fingerprint=model.fingerprint)


def guarded(model: Scripted, tasks: list[str], folder: Path, out: Path, **more: Any) -> BridgeResult:
    return evaluate_via_lmms(model, tasks, fingerprint=model.fingerprint, out=out, include_path=folder, **more)


def right(question: str, k: int) -> str:
    return f"a{question.split()[1]}"


def test_clean_deletes_models(bundle: ProcessorBundle) -> None:
    from lmms_eval.api.model import lmms

    lm = bridge(Scripted(bundle, right))
    lm.exposed = torch.nn.Linear(1, 1)
    lmms.clean(lm)
    assert not hasattr(lm, "exposed")
    lm.exposed = torch.nn.Linear(1, 1)
    lm.clean()
    assert isinstance(lm.exposed, torch.nn.Linear)
    assert lm._model[0].bundle is bundle


def test_generators_are_seeded_results_are_no_json_and_hashes_are_equal(bundle: ProcessorBundle, tmp_path: Path) -> None:
    """Traps 2, 12, 13, 16 and 17 with one task: a custom aggregation and a metric that is NaN."""
    from lmms_eval import evaluator

    folder, model = make_task(tmp_path / "tasks", "numbers", 3), Scripted(bundle, right)
    random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), torch.get_rng_state()
    found = unguarded(bridge(model), ["numbers"], folder, log_samples=True)
    assert random.getstate() != before[0]
    assert not torch.equal(torch.get_rng_state(), before[1])
    assert torch.initial_seed() == 1234
    assert len({sample["doc_hash"] for sample in found["samples"]["numbers"]}) == 1
    assert found["results"]["numbers"]["acc_stderr,none"] == "N/A"
    assert "NaN" in json.dumps(found["results"]["numbers"], default=str)
    assert found["date"] == inspect.signature(evaluator.simple_evaluate).parameters["datetime_str"].default  # of the import, not of the run

    random.seed(5)
    torch.manual_seed(5)
    result = guarded(model, ["numbers"], folder, tmp_path / "out")
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert [(r.sample_id, r.text) for r in result.records["numbers"]] == [(f"numbers/test/{i}", f"a{i}") for i in range(3)]
    assert result.upstream == {"numbers": {"upstream/acc": 1.0}}
    assert all(dict(r.scores) == {"upstream/acc": 1.0} for r in result.records["numbers"])
    text = (tmp_path / "out" / "lmms.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["harness"] == "lmms-eval 0.7.3"


def test_what_the_bridge_asks_of_upstream(bundle: ProcessorBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, no bootstrap, a date of its own, and a backend that makes no Accelerator for the whole process."""
    from lmms_eval import evaluator

    folder, asked, real = make_task(tmp_path / "tasks", "asked", 2), {}, evaluator.simple_evaluate
    parameters = inspect.signature(real).parameters
    assert (parameters["process_docs_parallel"].default, parameters["distributed_executor_backend"].default) == (4, "accelerate")

    def spy(process_docs_parallel: int, datetime_str: str, bootstrap_iters: int, distributed_executor_backend: str, **more: Any) -> Any:
        asked.update(parallel=process_docs_parallel, date=datetime_str, bootstrap=bootstrap_iters, backend=distributed_executor_backend)
        given = {"datetime_str": datetime_str, "distributed_executor_backend": distributed_executor_backend}
        known = {name: value for name, value in more.items() if name in parameters}
        return real(process_docs_parallel=process_docs_parallel, bootstrap_iters=bootstrap_iters, **given, **known)

    spy.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
    monkeypatch.setattr(evaluator, "simple_evaluate", spy)
    guarded(Scripted(bundle, right), ["asked"], folder, tmp_path / "out")
    assert (asked["parallel"], asked["bootstrap"], asked["backend"]) == (1, 0, "torchrun")
    assert asked["date"] != parameters["datetime_str"].default


def test_blank_lines_stop_reasoning(bundle: ProcessorBundle, tmp_path: Path) -> None:
    from lmms_eval.api.task import TaskConfig

    given = TaskConfig(task="x", generation_kwargs={"max_new_tokens": 9}).generation_kwargs
    text = "<think>First,\n\nthen</think><answer>a0</answer>"
    assert "answer" not in cut(text, given["until"])
    assert cut(text, stop_strings(given)) == text
    result = guarded(Scripted(bundle, lambda q, k: text), ["lines"], make_task(tmp_path / "tasks", "lines", 1), tmp_path / "out")
    assert result.upstream["lines"]["upstream/acc"] == 1.0  # the scorer saw the answer alone
    assert result.records["lines"][0].text == text


def test_scorers_misread_thoughts(bundle: ProcessorBundle, tmp_path: Path) -> None:
    """An exact-match scorer sees the thought without the answer view; a choice is a sentence without normalisation."""
    folder = make_task(tmp_path / "tasks", "views", 1)
    raw = guarded(Scripted(bundle, lambda q, k: "<think>?</think>a0"), ["views"], folder, tmp_path / "a", options=Options(view="raw"))
    view = guarded(Scripted(bundle, lambda q, k: "<think>?</think>a0"), ["views"], folder, tmp_path / "b")
    assert [r.upstream["views"]["upstream/acc"] for r in (raw, view)] == [0.0, 1.0]
    said = Scripted(bundle, lambda q, k: "<answer>The answer is B.</answer>")
    plain = guarded(said, ["views"], folder, tmp_path / "c")
    letter = guarded(said, ["views"], folder, tmp_path / "d", options=Options(choice_tasks=("views",)))
    assert [r.records["views"][0].answer for r in (plain, letter)] == ["The answer is B.", "B"]


def test_math_verify_fails_in_threads() -> None:
    from math_verify import parse, verify

    def naive() -> bool:
        return verify(parse("1/2"), parse("0.5"))

    assert naive()
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(naive).exception(), ValueError) or pool.submit(naive).result() is False
        assert pool.submit(equivalent, "1/2", "0.5").result()


def test_a_raising_scorer_is_tried_again_and_again() -> None:
    from lmms_eval.api.task import ConfigurableTask

    retry = ConfigurableTask.process_results.retry  # type: ignore[attr-defined]
    assert [stop.max_attempt_number for stop in retry.stop.stops if hasattr(stop, "max_attempt_number")] == [5]
    assert functions.process_results({"row": "no JSON", "source": "f:1"}, ["x"])["vlmrl_error"]


def test_the_cache_takes_two_checkpoints_for_one(bundle: ProcessorBundle, tmp_path: Path) -> None:
    from vlmrl.extras.bridge.model import VlmrlBridge

    class Nameless(VlmrlBridge):
        def __str__(self) -> str:
            return "model"

    folder = make_task(tmp_path / "tasks", "cached", 2)
    good, bad = Scripted(bundle, right), Scripted(bundle, lambda q, k: "wrong", fingerprint="g")
    for model in (good, bad):
        found = unguarded(Nameless(model, fingerprint=model.fingerprint), ["cached"], folder, use_cache=str(tmp_path / "cache"))
        assert found["results"]["cached"]["acc,none"] == 1.0
    assert (good.calls, bad.calls) == (2, 0)
    good.calls = 0
    accuracy = [
        unguarded(bridge(model), ["cached"], folder, use_cache=str(tmp_path / "ours"))["results"]["cached"]["acc,none"]
        for model in (good, bad)
    ]
    assert (accuracy, good.calls, bad.calls) == ([1.0, 0.0], 2, 2)


def test_a_task_is_shadowed_by_another_of_its_name(tmp_path: Path) -> None:
    from lmms_eval.tasks import TaskManager

    first, second = make_task(tmp_path / "first", "same", 1), make_task(tmp_path / "second", "same", 1)
    both = TaskManager("WARNING", include_path=[str(first), str(second)], include_defaults=False).task_index
    ours = TaskManager("WARNING", include_path=[str(second)], include_defaults=False).task_index
    assert both["same"]["yaml_path"].startswith(str(first))
    with pytest.raises(ConfigError, match="is shadowed by"):
        run.check_paths(["same"], ours, both)


def test_a_share_as_limit_becomes_the_count_of_the_first_task(bundle: ProcessorBundle, tmp_path: Path) -> None:
    folder = make_task(make_task(tmp_path / "tasks", "long", 6), "short", 4)
    model = Scripted(bundle, right)
    found = unguarded(bridge(model), ["long", "short"], folder, limit=0.5)
    assert {name: n["effective"] for name, n in found["n-samples"].items()} != {"long": 3, "short": 2}
    with pytest.raises(ConfigError, match="whole number"):
        guarded(model, ["long", "short"], folder, tmp_path / "out", limit=0.5)
    result = guarded(model, ["long", "short"], folder, tmp_path / "out", limit=2)
    assert {name: len(rows) for name, rows in result.records.items()} == {"long": 2, "short": 2}


def test_only_the_first_of_several_answers_is_scored(bundle: ProcessorBundle, tmp_path: Path) -> None:
    row = {"id": "a", "task": "t", "answer_type": "number", "prompt": "How many?", "answer": "3"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    task = Task(
        id="k", source="rows.jsonl", answer_format="answer_only", answer_type="number", max_new_tokens=4, samples=2, temperature=1.0
    )
    model = Scripted(bundle, lambda question, k: f"<answer>{3 + k}</answer>")
    path = write_yaml(with_defaults(task), tmp_path, tmp_path / "tasks")
    result = guarded(model, ["vlmrl_k"], tmp_path / "tasks", tmp_path / "out")
    assert result.upstream["k"]["upstream/exact"] == 0.5
    assert [(r.k, r.sample_id, r.scores["exact"]) for r in result.records["k"]] == [(0, "a", 1.0), (1, "a", 0.0)]
    assert result.summaries["k"].metrics["exact"].mean == 0.5
    text = path.read_text()
    start, end = text.index("filter_list:"), len(text)
    path.write_text(text[:start] + text[end:])
    assert guarded(model, ["vlmrl_k"], tmp_path / "tasks", tmp_path / "naive").upstream["k"]["upstream/exact"] == 1.0


def test_importing_resets_warnings_loguru_and_pillow() -> None:
    code = """
import json, sys, warnings
import loguru, torch
from PIL import ImageFile
from vlmrl.extras.bridge.compat import preserved
def state():
    timeout = str(torch.distributed.distributed_c10d.default_pg_timeout)
    return [len(warnings.filters), sorted(loguru.logger._core.handlers), timeout, ImageFile.LOAD_TRUNCATED_IMAGES]
before = state()
with preserved():
    import lmms_eval.evaluator
    inside = state()
print(json.dumps([before, inside, state()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True)
    before, inside, after = json.loads(done.stdout.splitlines()[-1])
    assert all(a != b for a, b in zip(before, inside, strict=True)), (before, inside)
    assert after == before


def test_ocrbench_adds_up_over_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utils = pytest.importorskip("lmms_eval.tasks.ocrbench.utils")
    counted = dict(utils.OCRBench_score)
    item = {"question_type": "Regular Text Recognition", "score": 1, "prediction": "x", "ground_truth": "x", "dataset": "d"}
    monkeypatch.chdir(tmp_path)

    def aggregate() -> float:
        arguments = type("Arguments", (), {"output_path": str(tmp_path)})()
        return utils.ocrbench_aggregate_accuracy([item], arguments)

    assert [aggregate(), aggregate()] == [0.001, 0.002]
    utils.OCRBench_score.update(counted)
    ran: list[list[str]] = []

    def child(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 1, "", "stopped here")

    monkeypatch.setattr(run.subprocess, "run", child)
    for _ in range(2):
        with pytest.raises(Exception, match="stopped here"):
            run.evaluate_offline(tmp_path, ["ocrbench"], out=tmp_path / "out")
    assert [command[1:3] for command in ran] == [["-m", "vlmrl.extras.bridge.offline"]] * 2  # a fresh interpreter each
