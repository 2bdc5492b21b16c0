"""Data of a task without its download: the sample of its data folder with generated media, where the task looks for its rows."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.support.samples import load_dataset, unpack
from tests.support.standins import fill
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.suite import load_suite
from vlmrl.evals.ask.tasks import Prepare, Task
from vlmrl.extras.importers.prepare.prepare import Dataset, Skipped, media_paths, prepare


def make_fixture(task: Task, data_root: Path, data_folder: Path) -> int:
    """Make `data_root/<task.source>` and its media as a user would: download (here the sample), then `prepare.py`.

    Args:
        data_root: where suites look for data; the sample goes to `data_root/<dataset>`.
        data_folder: `data/` of a checkout, with `<dataset>/prepare.py` and `<dataset>/sample/`.

    Returns:
        Number of rows.

    Raises:
        ConfigError: the task does not say how its rows are made, or says what does not lead to its own `source` and `media_root`.
        DataError: the data folder has no script or sample, or the sample gives no rows.
    """
    if task.prepare is None:
        raise ConfigError(f"task '{task.id}': has no 'prepare'; a fixture needs to know which data folder its rows come from")
    dataset = load_dataset(data_folder / task.prepare.dataset)
    options = options_of(dataset, task.id, task.prepare)
    source, download = data_root / task.source, data_root / task.prepare.dataset
    if source.name != f"{task.prepare.split}.jsonl":
        raise ConfigError(f"task '{task.id}': source is {task.source}, but prepare.py writes {task.prepare.split}.jsonl for its split")
    unpack(dataset.folder, download)
    records = dataset.rows(download, task.prepare.split, **options)
    fill(download, [record for record in records if not isinstance(record, Skipped)])
    prepare(dataset, download, source.parent, task.prepare.split, allow_partial=True, **options)
    rows: list[dict[str, Any]] = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    for path in (path for row in rows for path in media_paths(row)):
        if not (data_root / task.media_root / path).is_file():
            raise ConfigError(f"task '{task.id}': media_root is {task.media_root}, but {path} of its rows is not there below {data_root}")
    return len(rows)


@functools.cache
def task_of(name: str) -> Task:
    """One of our tasks, with defaults filled in; the first of several answer formats."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.yaml"
        path.write_text(f"id: one\nversion: 1\ntasks: [{name}]\n")
        return load_suite(path).tasks[0]


def options_of(dataset: Dataset, name: str, made: Prepare) -> dict[str, str]:
    """The options of the script, with their defaults.

    Raises:
        ConfigError: `made` names a split, an option or a value that the script does not have.
    """
    where = f"task '{name}': prepare"
    if made.split not in dataset.splits:
        raise ConfigError(f"{where}.split is '{made.split}'; {made.dataset} has: {', '.join(dataset.splits)}")
    for option, value in made.options.items():
        if value not in dataset.options.get(option, ()):
            known = ", ".join(f"{key}: {'|'.join(values)}" for key, values in dataset.options.items()) or "none"
            raise ConfigError(f"{where}.options has {option}: {value}; {made.dataset} has: {known}")
    return {option: values[0] for option, values in dataset.options.items()} | made.options
