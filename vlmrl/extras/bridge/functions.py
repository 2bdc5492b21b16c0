"""Functions that the YAML files of our tasks name as `!function`: documents to messages, texts, visuals and golds; texts to metrics.

A document is what `task_files.write_yaml` writes: one of our rows as JSON text, with the task that it belongs to. Texts and not nested
values, because the loader of upstream gives a column one type: `[3, 5.5]` becomes `[3.0, 5.5]` and absent keys become nulls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from vlmrl.data.encode import messages
from vlmrl.data.row import parse_row
from vlmrl.errors import DataError, MediaError, VlmrlError
from vlmrl.evals.ask.engines import Generation
from vlmrl.evals.ask.evaluate import EvalOptions, RecordBuilder
from vlmrl.evals.ask.tasks import Task
from vlmrl.evals.score.measures import METRICS, metrics_of
from vlmrl.media.access import IMAGE_BYTES, VIDEO_BYTES, open_media
from vlmrl.plugins import import_plugins
from vlmrl.types import GenerationSettings, MediaRef, Prompt, Sample

FORMAT = "vlmrl-1"
"""Value of `format` in our documents."""
ERROR = "vlmrl_error"
"""A metric whose values are texts: why an answer could not be scored, empty where it was. Aggregated, it is how many could not."""
OF_GENERATION = frozenset({"tokens", "truncation_rate"})
"""Metrics that the text alone does not tell; they are computed from our records."""

_NOT_SCORED = (VlmrlError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, OSError)


def is_ours(doc: Mapping[str, Any]) -> bool:
    """Whether `task_files` wrote the document."""
    return doc.get("format") == FORMAT


def sample_of(doc: Mapping[str, Any]) -> Sample:
    """The row of a document. Raises RowError if it was changed and is no row any more."""
    task_of(doc)  # its plug-ins may define the answer type
    return parse_row(json.loads(doc["row"]), source=doc["source"], media_root=doc["media_root"])


def task_of(doc: Mapping[str, Any]) -> Task:
    """The task of a document."""
    return _task(doc["task"])


@lru_cache(maxsize=64)
def _task(text: str) -> Task:
    task = Task.model_validate_json(text)
    import_plugins(task.plugins, f"tasks.{task.id}.plugins")
    return task


def names(task: Task) -> tuple[str, ...]:
    """The metrics that upstream shows for a task."""
    return tuple(name for name in metrics_of(*task.answer_types) if name not in OF_GENERATION)


def doc_to_messages(doc: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One user turn, exactly as the task is asked natively; media by absolute path."""
    sample = sample_of(doc)
    task = task_of(doc)
    turns = messages(sample, task.asked, task.prompt)
    paths = iter(_paths(sample))
    for turn in turns:
        for part in turn["content"]:
            if part["type"] != "text":
                part["url"] = str(next(paths))
    return turns


def doc_to_text(doc: Mapping[str, Any]) -> str:
    """Question and instruction, for models of the simple layout. Question first or media first is not their choice."""
    task = task_of(doc)
    turns = messages(sample_of(doc), task.asked, task.prompt)
    return " ".join(part["text"] for turn in turns for part in turn["content"] if part["type"] == "text")


def doc_to_visual(doc: Mapping[str, Any]) -> list[Any]:
    """Pictures as Pillow images (which such models take), videos by absolute path."""
    sample = sample_of(doc)
    out: list[Any] = []
    for ref, path in zip(sample.media, _paths(sample), strict=True):
        if ref.kind == "image":
            with Image.open(path) as image:
                image.load()
                out.append(image)
        else:
            out.append(str(path))
    return out


def doc_to_target(doc: Mapping[str, Any]) -> str:
    """The gold answer as text; scoring uses the row's `gt`."""
    return sample_of(doc).answer


def process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float | str]:
    """Metrics of the answers to a document, the mean over its answers. Metrics that do not apply are left out, so nothing is NaN.

    Never raises: upstream would try again four times, two seconds apart, and then say that retrying failed. What could not be scored
    has its reason under `ERROR` and no metrics; the bridge turns that into an error after the run.
    """
    try:
        measured = [measure(doc, text) for text in results]
    except _NOT_SCORED as error:
        return {ERROR: f"{doc.get('source', '?')}: {type(error).__name__}: {error}"}
    values = {name: [m[name] for m in measured if name in m] for name in (measured[0] if measured else {})}
    return {**{name: sum(v) / len(v) for name, v in values.items()}, ERROR: "" if measured else "no answer was given to this document"}


def measure(doc: Mapping[str, Any], text: str) -> dict[str, float]:
    """Metrics of one answer: those of the native evaluation, by the same code.

    Raises:
        RowError, ValueError: the document cannot be used.
    """
    sample, task = sample_of(doc), task_of(doc)
    reading = RecordBuilder(
        options=EvalOptions(
            settings=GenerationSettings(max_new_tokens=task.max_new_tokens, temperature=0.0),
            extraction=task.extraction,
            scoring=task.scoring,
        ),
        fingerprint="",
        model="",
        tokenizer_len=lambda _: 0,
    )
    prompt = Prompt(sample=sample, ids=(), media=(), spans=(), answer_format=task.asked)
    record = reading.record(prompt, Generation(text=text, n_out=0, finish="stop"))
    found = {name: METRICS[name](record) for name in names(task)}
    return {name: float(value) for name, value in found.items() if value is not None}


def count_errors(items: Sequence[str]) -> int:
    """How many answers could not be scored."""
    return sum(bool(item) for item in items)


def _paths(sample: Sample) -> list[Path]:
    return [_checked(Path(sample.media_root), ref, sample) for ref in sample.media]


def _checked(root: Path, ref: MediaRef, sample: Sample) -> Path:
    """The file of a medium. Opened once under its root, so that a row cannot name what lies outside, as in native evaluation.

    Raises:
        DataError: it cannot be opened, leads out of the media root, or is a video given as pictures, which upstream has no form for.
    """
    if ref.as_frames:
        raise DataError(
            f"row '{sample.id}' ({sample.source}): its video is given as pictures; models of lmms-eval take video files. "
            "Evaluate it with `vlmrl eval`, or make a file of the pictures"
        )
    try:
        open_media(root, ref.path, max_bytes=IMAGE_BYTES if ref.kind == "image" else VIDEO_BYTES).close()
    except MediaError as error:
        raise DataError(f"row '{sample.id}' ({sample.source}): {error}") from error
    return root / ref.path
