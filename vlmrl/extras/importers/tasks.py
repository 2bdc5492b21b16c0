"""Tasks of an environment: the rows of a stage that names one.

    {"id": "desk-2", "environment": {"length": 2}}
    {"id": "desk-2"}                                      # with `adapter: tasks`

What stands under `environment` is what the environment is given, with the id; it goes to `meta.environment`. A row without it, which is
a task only where the recipe says so, gives the environment nothing else. There is no question and no gold answer: what is asked and what
it earns, the environment says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.fields import id_of, left_over, mapping_of, optional_text

name = "tasks"
TASK = "environment"


def detect(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("environment"), Mapping) and "answer_type" not in row


def convert(row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    found = id_of(row, "id")
    if found is None:
        raise RowError("missing_key", "'id' is missing; seeds and ledger go by it")
    meta = {**left_over(row, "id", "environment", "task"), "environment": dict(mapping_of(row, "environment"))}
    task = optional_text(row, "task") or options.task or TASK
    return {"id": found, "task": task, "answer_type": "exact_text", "prompt": "An episode.", "answer": "none", "meta": meta}
