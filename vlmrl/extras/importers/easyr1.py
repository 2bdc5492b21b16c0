"""Rows of EasyR1, and the like ones of open-r1-multimodal: `problem`, `answer` (or `solution`), `images` or `videos`.

    {"problem": "<image>Find x.", "answer": "48", "images": ["a.png"]}

Where both are there, `answer` is the gold answer and `solution` goes to `meta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.build import build
from vlmrl.extras.importers.chat import from_text, merged, read_prompt
from vlmrl.extras.importers.fields import Found, id_of, left_over, list_of, optional_text, options_of

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
    chat = read_prompt(from_text(row.get("problem"), "problem"), "problem", several=options.turns is not None)
    if chat.answer is not None:
        raise RowError("turns", f"'problem' ends with a turn of the assistant; the answer is '{given}'")
    return build(
        Found(
            question=chat.question,
            history=chat.history,
            answer=row[given],
            images=merged(chat.images, list_of(row, "image", "images"), "image"),
            videos=merged(chat.videos, list_of(row, "video", "videos"), "video"),
            task=optional_text(row, "task"),
            id=id_of(row, "id"),
            options=options_of(row),
            system=chat.system,
            thought=optional_text(row, "thought"),
            meta=left_over(row, *_USED, given),
        ),
        options,
    )
