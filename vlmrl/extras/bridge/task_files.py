"""Writes our tasks as task files of lmms-eval: `<folder>/vlmrl_<task>/` with `vlmrl_<task>.yaml` and `docs.jsonl`.

    write_yaml(task, data_root, folder)
    python -m lmms_eval --model vlmrl --tasks vlmrl_<task> --include_path <folder> ...

The documents hold the rows, not the media, and absolute paths: write the files again where rows change or the data move.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from vlmrl import fs
from vlmrl.data.row import parse_row
from vlmrl.errors import DataError
from vlmrl.evals.ask.run import task_samples
from vlmrl.evals.ask.tasks import Task
from vlmrl.extras.bridge import functions
from vlmrl.types import MediaRef, Sample

PREFIX = "vlmrl_"
"""A task with the name of one of upstream's own is shadowed by it, so ours all start so."""
DOCS = "docs.jsonl"

_FUNCTIONS = ("doc_to_messages", "doc_to_text", "doc_to_visual", "doc_to_target", "process_results")
_MODULE = functions.__name__


def upstream_name(task: Task) -> str:
    """The task's name for lmms-eval."""
    return PREFIX + task.id


def write_yaml(task: Task, data_root: Path, folder: Path) -> Path:
    """Write a task for lmms-eval; the path of its YAML file.

    Args:
        task: as in a suite after `load_suite`: with one answer format.
        data_root: folder that the task's rows and its `media_root` are relative to.
        folder: what `--include_path` will be; the task gets a folder of its own in it.

    Raises:
        DataError: rows cannot be used, or their gold answer cannot be scored.
        StorageError: a file cannot be written.
    """
    samples, _ = task_samples(task, data_root, None)
    name = upstream_name(task)
    place = folder / name
    lines = [json.dumps(document(sample, task, data_root)) for sample in samples]
    problems = [found for line in lines if (found := functions.process_results(json.loads(line), [""])[functions.ERROR])]
    if problems:
        raise DataError(f"task '{task.id}': {len(problems)} of {len(samples)} rows cannot be scored; fix them\n  {problems[0]}")
    fs.mkdir(place)
    fs.write_text(place / DOCS, "".join(line + "\n" for line in lines))
    fs.write_text(place / f"{name}.yaml", task_yaml(task))
    return place / f"{name}.yaml"


def document(sample: Sample, task: Task, data_root: Path) -> dict[str, str]:
    """One line of the documents.

    Raises:
        DataError: the sample cannot be written as a row.
    """
    media_root = str((data_root / task.rows.media_root).absolute())
    row = row_of(sample)
    again = parse_row(row, source=sample.source, media_root=sample.media_root)
    if again != sample:
        raise DataError(f"row '{sample.id}' ({sample.source}): cannot be written as a row of our schema: it would be read as another one")
    return {
        "format": functions.FORMAT,
        "id": sample.id,
        "row": json.dumps(row),
        "source": sample.source,
        "media_root": media_root,
        "task": task.model_dump_json(exclude={"published", "made"}),
    }


def row_of(sample: Sample) -> dict[str, Any]:
    """The row (`data.row`) that gives this sample, whatever file it came from."""
    kinds, history = [f"<{ref.kind}>" for ref in sample.media], list[dict[str, str]]()
    for turn in sample.history:
        shown, kinds = "".join(kinds[: turn.media]), kinds[turn.media :]
        history.append({"prompt": turn.question + shown if turn.question_first else shown + turn.question, "answer": turn.answer})
    placeholders = "".join(kinds)
    row: dict[str, Any] = {
        "id": sample.id,
        "task": sample.task,
        "answer_type": sample.answer_type,
        "prompt": f"{sample.question}{placeholders}" if sample.question_first else f"{placeholders}{sample.question}",
        "answer": sample.answer,
        "gt": dict(sample.gt),
        "meta": dict(sample.meta),
    }
    if history:
        row["history"] = history
    for kind in ("image", "video"):
        refs = [ref for ref in sample.media if ref.kind == kind]
        if refs:
            row[f"{kind}s"] = [_medium(ref) for ref in refs]
    return row if sample.thought is None else {**row, "thought": sample.thought}


def _medium(ref: MediaRef) -> str | dict[str, Any]:
    if ref.as_frames:
        clock: dict[str, Any] = {"fps": ref.fps} if ref.times is None else {"times": list(ref.times)}
        return {"frames": [_medium(frame) for frame in ref.frames] or ref.path, **clock}
    return ref.path if ref.sha256 is None else {"path": ref.path, "sha256": ref.sha256}


def task_yaml(task: Task) -> str:
    """The YAML file. `until: []` because the default stops at the first blank line; `reasoning_tags: none` because the thought is part
    of what we score; several answers need a filter that keeps them all."""
    metrics = [_mean(name) for name in functions.names(task)]
    config: dict[str, Any] = {
        "task": upstream_name(task),
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": DOCS}},
        "test_split": "test",
        "output_type": "generate_until",
        "generation_kwargs": {
            "max_new_tokens": task.max_new_tokens,
            "do_sample": task.temperature > 0,
            "temperature": task.temperature,
            "top_p": task.top_p,
            "until": [],
        },
        "reasoning_tags": "none",
        "metadata": {"version": task.version},
        "metric_list": metrics,
    }
    if task.samples > 1:
        config["repeats"] = task.samples
        config["filter_list"] = [{"name": "none", "filter": [{"function": "take_first_k", "k": task.samples}]}]
    body = yaml.safe_dump(config, sort_keys=False, default_flow_style=False)
    errors = f"- metric: {functions.ERROR}\n  aggregation: !function {_MODULE}.count_errors\n  higher_is_better: false\n"
    calls = "".join(f"{name}: !function {_MODULE}.{name}\n" for name in _FUNCTIONS)
    head = "# Written by vlmrl.extras.bridge.task_files; write it again instead of changing it.\n"
    return head + calls + _with_metric(body, errors)


def _with_metric(body: str, metric: str) -> str:
    """`body` with one more item in its `metric_list`; tags cannot be written by the safe dumper."""
    start = body.index("metric_list:\n") + len("metric_list:\n")
    return body[:start] + metric + body[start:]


def _mean(name: str) -> dict[str, Any]:
    return {"metric": name, "aggregation": "mean", "higher_is_better": True}
