"""Rows of EasyR1, and the like ones of open-r1-multimodal: `problem`, `answer` (or `solution`), `images` or `videos`.

    {"problem": "<image>Find x.", "answer": "48", "images": ["a.png"]}

Where both are there, `answer` is the gold answer and `solution` goes to `meta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import Found, ImportOptions, id_of, left_over, list_of, optional_text, options_of, text_of
from vlmrl.data.adapters.build import build
from vlmrl.errors import RowError

name = "easyr1"
_USED = ("id", "problem", "image", "images", "video", "videos", "options", "task", "thought")


def detect(row: Mapping[str, Any]) -> bool:
    """`problem`, without the keys by which Video-R1 and its relatives are known."""
    return "problem" in row and not {"problem_type", "path", "answer_type", "prompt", "messages", "conversations"} & set(row)


def convert(row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """A row of our schema.

    Raises:
        RowError: naming the key at fault.
    """
    given = next((key for key in ("answer", "solution", "ground_truth") if row.get(key) is not None), None)
    if given is None:
        raise RowError("missing_key", "no gold answer: 'answer' (or 'solution', 'ground_truth') is missing")
    return build(
        Found(
            question=text_of(row, "problem"),
            answer=row[given],
            images=list_of(row, "image", "images"),
            videos=list_of(row, "video", "videos"),
            task=optional_text(row, "task"),
            id=id_of(row, "id"),
            options=options_of(row),
            thought=optional_text(row, "thought"),
            meta=left_over(row, *_USED, given),
        ),
        options,
    )
