"""Rows of VLM-R1 (LLaVA style): `image` (a name or a list) and `conversations` of human and gpt.

    {"id": 1, "image": "a.png", "conversations": [{"from": "human", "value": "<image>How many?"}, {"from": "gpt", "value": "3"}],
     "accu_reward_method": "default"}

The gold answer is the turn of gpt, else `solution`. `accu_reward_method` says the answer type, except for `default` and `llm`, which
leave it to the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.build import build, kind_of
from vlmrl.extras.importers.chat import read_chat
from vlmrl.extras.importers.fields import Found, id_of, left_over, list_of, optional_text, options_of

name = "vlm_r1"
_USED = ("id", "image", "images", "video", "videos", "conversations", "solution", "accu_reward_method", "options", "task")
METHODS: dict[str, str | None] = {
    "mcq": "choice",
    "math": "math",
    "numeric": "number",
    "yes no": "exact_text",
    "iou": "bbox",
    "map": "bbox",
    "od ap": "bbox",
    "od ap50": "bbox",
    "all match": "exact_text",
    "weighted sum": None,
    "cosine": None,
    "repetition": None,
}
_OPEN = ("default", "llm")


def detect(row: Mapping[str, Any]) -> bool:
    """`conversations` with `image`."""
    return "conversations" in row and "image" in row and not {"answer_type", "messages"} & set(row)


def convert(row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """A row of our schema.

    Raises:
        RowError: naming the key at fault.
    """
    chat = read_chat(row.get("conversations"), "conversations", several=options.turns is not None)
    if chat.images or chat.videos:
        raise RowError("bad_type", "'conversations' holds media as parts; in rows of this shape they stand in 'image'")
    answer = chat.answer if chat.answer is not None else row.get("solution")
    if answer is None:
        raise RowError("missing_key", "no gold answer: 'conversations' has no turn of gpt and there is no 'solution'")
    if chat.answer is not None and row.get("solution") not in (None, chat.answer):
        raise RowError("answer", "'solution' and the turn of gpt in 'conversations' differ; give one of them")
    method = row.get("accu_reward_method")
    return build(
        Found(
            question=chat.question,
            history=chat.history,
            answer=answer,
            images=list_of(row, "image", "images"),
            videos=list_of(row, "video", "videos"),
            answer_type=None if method is None or method in _OPEN else kind_of(method, METHODS, "accu_reward_method"),
            task=optional_text(row, "task"),
            id=id_of(row, "id"),
            options=options_of(row),
            system=chat.system,
            meta=left_over(row, *_USED),
        ),
        options,
    )
