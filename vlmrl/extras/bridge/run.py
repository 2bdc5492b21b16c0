"""Runs an evaluation through lmms-eval: in this process for a model that is loaded, or in a child process for a checkpoint.

Importing this imports nothing of lmms-eval.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vlmrl import errors, fs
from vlmrl.errors import ConfigError, DataError, VlmrlError
from vlmrl.evals.ask.models import Model
from vlmrl.evals.ask.run import Changes
from vlmrl.evals.ask.suite import Suite, data_root_of
from vlmrl.evals.score.records import Record, read_records
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.values import is_scored
from vlmrl.extras.bridge import compat
from vlmrl.extras.bridge.join import Reader, aggregated, check_errors, in_order, records_of
from vlmrl.extras.bridge.options import Options
from vlmrl.extras.bridge.task_files import PREFIX, upstream_name, write_yaml

RESULTS = "lmms.json"
"""What upstream found, in the output folder; records are in `<task>.jsonl` beside it."""
FAILURE = "failure.json"
"""Why a child failed."""
_SEED = 0
"""Of the bootstrap."""
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_TAIL = 2000
"""Characters of a child's stderr in messages."""


@dataclass(frozen=True, kw_only=True)
class BridgeResult:
    """What an evaluation through lmms-eval found."""

    harness: str
    """`lmms-eval <version>`."""
    upstream: dict[str, dict[str, float]]
    """Task -> its numbers as upstream aggregates them, named `upstream/<metric>`."""
    records: dict[str, list[Record]]
    """By task."""
    versions: dict[str, str]
    """Versions of the tasks, as upstream states them."""
    out: Path
    summaries: dict[str, Summary] = field(default_factory=dict)
    """Our metrics with intervals, of tasks that our scorers read."""

    def json(self) -> dict[str, Any]:
        """Everything but records and summaries, as JSON values."""
        return {"harness": self.harness, "upstream": self.upstream, "versions": self.versions}


def evaluate_via_lmms(
    model: Model,
    tasks: Sequence[str],
    *,
    fingerprint: str,
    out: Path,
    include_path: Path | Sequence[Path] = (),
    limit: int | None = None,
    options: Options | None = None,
    module: torch.nn.Module | None = None,
) -> BridgeResult:
    """Evaluate in this process, which is afterwards as before (see `compat.preserved`).

    Writes `<out>/<task>.jsonl` (records) and `lmms.json`.

    Args:
        tasks: names of tasks, ours (`task_files.write_yaml`) or upstream's.
        fingerprint: of the weights.
        include_path: folders with task files.
        limit: at most so many documents of each task, the first ones, as upstream takes them.
        module: put into evaluation mode meanwhile.

    Raises:
        ConfigError: lmms-eval cannot be used here, a task is unknown or shadowed, the limit is no whole number, or there are several ranks.
        DataError: documents cannot be asked, or answers cannot be scored.
    """
    version = compat.require()
    check_limit(limit)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("evaluation through lmms-eval in this process needs a single rank; use `evaluate_offline` on the first one")
    check_names(tasks)
    options = options or Options()
    folders = [include_path] if isinstance(include_path, Path) else list(include_path)
    with compat.preserved(module):
        from vlmrl.extras.bridge.model import VlmrlBridge

        lm = VlmrlBridge(model, fingerprint=fingerprint, options=options, records=out)
        found = _simple_evaluate(lm, tasks, folders, limit)
        samples = {task: in_order(rows) for task, rows in found["samples"].items()}
        check_errors(samples)
        reader = Reader(
            fingerprint=fingerprint,
            model=model.name,
            harness=f"lmms-eval {version}",
            answer_format=options.answer_format,
            seed=options.seed,
            tokenizer_len=lambda text: len(model.bundle.tokenize(text)),
        )
        records = {_own_name(task): records_of(task, rows, lm.raw, reader) for task, rows in samples.items()}
        upstream = {_own_name(task): aggregated(found["results"].get(task, {})) for task in samples}
    versions = {_own_name(task): str(found["versions"].get(task, "")) for task in samples}
    result = BridgeResult(
        harness=reader.harness, upstream=upstream, records=records, versions=versions, out=out, summaries=_summaries(records)
    )
    fs.mkdir(out)
    for task, rows in records.items():
        fs.write_bytes(out / f"{task}.jsonl", b"".join(record.line() for record in rows))
    fs.write_text(out / RESULTS, json.dumps(result.json(), indent=1, sort_keys=True, allow_nan=False) + "\n")
    return result


def evaluate_offline(
    checkpoint: Path,
    tasks: Sequence[str],
    *,
    out: Path,
    include_path: Path | Sequence[Path] = (),
    limit: int | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
    dtype: str = "float32",
    attention: str = "sdpa",
) -> BridgeResult:
    """Evaluate a checkpoint in a child process, so that nothing of lmms-eval (imports, module-level sums, generators) is ever in this one.

    Args:
        checkpoint: model folder, or a finished run's directory.
        options: of `options.Options`, by name, with `media` as a mapping.
        Others as `evaluate_via_lmms`.

    Raises:
        VlmrlError: as `evaluate_via_lmms`; one of that kind itself when the child died for another reason.
    """
    compat.require()
    check_limit(limit)
    folders = [include_path] if isinstance(include_path, Path) else list(include_path)
    fs.mkdir(out)
    fs.remove_tree(out / FAILURE)
    request = {"checkpoint": str(checkpoint), "tasks": list(tasks), "include_path": [str(path) for path in folders], "limit": limit}
    request |= {"options": dict(options or {}), "device": device, "dtype": dtype, "attention": attention}
    fs.write_text(out / "request.json", json.dumps(request, indent=1, sort_keys=True) + "\n")
    environment = {name: value for name, value in os.environ.items() if name not in _RANKS}
    command = [sys.executable, "-m", "vlmrl.extras.bridge.offline", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _failure(out, done.returncode, done.stderr)
    return read_result(out)


def evaluate_suite_via_lmms(
    checkpoint: Path,
    suite: Suite,
    *,
    out: Path,
    data_root: Path | None = None,
    limit: int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    attention: str = "sdpa",
) -> BridgeResult:
    """Evaluate a checkpoint on a suite of ours through lmms-eval, in a child. The task files are written to `<out>/tasks`.

    Args:
        suite: as from `load_suite`.
        data_root: replaces the suite's.
        limit: at most so many rows of each task: those that native evaluation takes (`ask.run.subset`).
        Others as `evaluate_offline`.

    Raises:
        DataError: rows cannot be used. Others as `evaluate_offline`.
    """
    check_limit(limit)
    root = data_root_of(suite, data_root)
    for task in suite.tasks:
        # Upstream's own limit takes the first rows. Here the task itself is cut, by the rule of native evaluation.
        write_yaml(Changes(limit=limit).of(task), root, out / "tasks")
    return evaluate_offline(
        checkpoint,
        [upstream_name(task) for task in suite.tasks],
        out=out,
        include_path=out / "tasks",
        options={"batch_prompts": suite.batch_prompts},
        device=device,
        dtype=dtype,
        attention=attention,
    )


def read_result(out: Path) -> BridgeResult:
    """The result that an evaluation left in its output folder.

    Raises:
        StorageError: records are missing or damaged.
        ConfigError: there is no result.
    """
    path = out / RESULTS
    if not path.is_file():
        raise ConfigError(f"{path}: no result of an evaluation through lmms-eval; run it first")
    found = json.loads(path.read_text(encoding="utf-8"))
    records = {task: read_records(out / f"{task}.jsonl") for task in found["upstream"]}
    return BridgeResult(out=out, records=records, summaries=_summaries(records), **found)


def check_limit(limit: object) -> None:
    """Upstream turns a share of the first task's documents into a number and uses it for all tasks.

    Raises:
        ConfigError: anything but None or a whole number from 1.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ConfigError(f"limit {limit!r}: must be a whole number of documents per task, from 1")


def check_names(tasks: Sequence[str]) -> None:
    """Raises ConfigError unless there are tasks whose records files have different names."""
    own = [_own_name(task) for task in tasks]
    if not own or len(set(own)) < len(own):
        raise ConfigError(
            f"tasks {list(tasks)}: must be at least one, each once (with and without the prefix '{PREFIX}' counts as the same)"
        )


def check_paths(tasks: Sequence[str], ours: Mapping[str, Any], every: Mapping[str, Any]) -> None:
    """Whether each task is the one that is meant.

    Args:
        ours: upstream's index of the included folders, by name.
        every: its index of all tasks that can be run.

    Raises:
        ConfigError: a task is unknown, or one of an included folder is shadowed by one of upstream's with the same name.
    """
    for task in tasks:
        if task not in every:
            raise ConfigError(f"task '{task}' is neither in the included folders nor one of lmms-eval's")
        if task in ours and every[task]["yaml_path"] != ours[task]["yaml_path"]:
            path = every[task]["yaml_path"]
            raise ConfigError(f"task '{task}' of {ours[task]['yaml_path']} is shadowed by {path}; give it a name that starts with 'vlmrl_'")


def _simple_evaluate(lm: Any, tasks: Sequence[str], folders: Sequence[Path], limit: int | None) -> dict[str, Any]:
    """Upstream's results, with `samples`."""
    from lmms_eval import evaluator
    from lmms_eval.tasks import TaskManager

    include = [str(folder.absolute()) for folder in folders]
    manager = TaskManager("WARNING", include_path=include, include_defaults=False)
    ours = manager.task_index
    if any(task not in ours for task in tasks):
        manager = TaskManager("WARNING", include_path=include)
    check_paths(tasks, ours, manager.task_index)
    wanted = {
        "model": lm,
        "tasks": list(tasks),
        "task_manager": manager,
        "limit": limit,
        "bootstrap_iters": 0,
        "log_samples": True,
        "datetime_str": time.strftime("%Y%m%d_%H%M%S"),
        # The other backend makes an Accelerator, whose settings every later one in the process would have to share.
        "distributed_executor_backend": "torchrun",
        "process_docs_parallel": 1,
    }
    known = inspect.signature(evaluator.simple_evaluate).parameters  # 0.7.2 does not have the last one
    found = evaluator.simple_evaluate(**{name: value for name, value in wanted.items() if name in known})
    if not found or not found.get("samples"):
        raise DataError(f"lmms-eval returned no samples for {', '.join(tasks)}")
    return found


def _own_name(task: str) -> str:
    """The name of a task in our files: ours without the prefix that they have for upstream."""
    return task.removeprefix(PREFIX)


def _summaries(records: Mapping[str, Sequence[Record]]) -> dict[str, Summary]:
    return {task: summarize(rows, seed=_SEED) for task, rows in records.items() if all(map(is_scored, rows))}


def _failure(out: Path, code: int, stderr: str) -> VlmrlError:
    """The error that a child reported; what is left of one that died otherwise."""
    path = out / FAILURE
    if path.is_file():
        told = json.loads(path.read_text(encoding="utf-8"))
        kind = {"ConfigError": ConfigError, "DataError": DataError, "StorageError": errors.StorageError}.get(told["kind"], VlmrlError)
        return kind(told["message"])
    return VlmrlError(f"evaluation through lmms-eval died with exit code {code}; the end of its output:\n{stderr[-_TAIL:]}")
