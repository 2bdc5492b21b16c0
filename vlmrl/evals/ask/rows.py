"""A file of rows as a suite of one task, for those who have rows and no suite (`vlmrl eval MODEL --rows FILE`).

The rows say which types their answers have, and the checkpoint how it is asked (`ask.asking`), as it does for `vlmrl serve --ask`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from vlmrl.config.schema import SourceSection
from vlmrl.data.adapters import ImportOptions
from vlmrl.data.source import load_source
from vlmrl.errors import ConfigError
from vlmrl.evals.ask.asking import Asking
from vlmrl.evals.ask.suite import Suite
from vlmrl.evals.ask.tasks import Task, check_task, with_defaults
from vlmrl.plugins import import_plugins

_NAME = "rows"
"""Of a file whose own name leaves nothing."""


def rows_suite(source: SourceSection, root: Path, asking: Asking, *, plugins: Sequence[str] = (), say: Callable[[str], None]) -> Suite:
    """Make the suite of one task that asks these rows, named after their file, with the metrics that such a task has by default.

    Args:
        source: the rows, as a recipe says it.
        root: folder that its paths are relative to.
        asking: how the checkpoint is asked.
        plugins: imported first; the rows may have answers of their types.
        say: gets what was found, and what was assumed.

    Raises:
        ConfigError: an answer type has no evaluation.
        DataError: the file cannot be read, or a row of it cannot be used.
    """
    import_plugins(plugins, "--plugin")
    options = ImportOptions.of(source, root)
    samples = load_source(
        root / source.path, media_root=source.media_root, dedupe="error", max_bad_rows=None, quarantine=None, options=options, say=say
    )
    types = Counter(sample.answer_type for sample in samples)
    # a task's id names its records file
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(source.path).stem).strip("_-") or _NAME
    task = Task.model_validate(
        {
            "id": name,
            "source": source,
            "answer_format": asking.answer_format,
            "answer_type": tuple(types),
            "max_new_tokens": asking.max_new_tokens,
            "max_prompt_tokens": asking.max_prompt_tokens,
            "media": asking.media,
            "prompt": asking.prompt,
            "plugins": tuple(plugins),
        }
    )
    problems = check_task(task)
    if problems:
        raise ConfigError([f"{source.path}: {problem}" for problem in problems])
    say(f"{source.path}: {len(samples)} rows, answers of the type {', '.join(types)}; asked as '{task.asked}'")
    for note in asking.notes[:1]:
        say(f"note: {note.partition('; --')[0]}")
    return Suite(id=name, version=1, title=f"the rows of {source.path}", tasks=(with_defaults(task),))
