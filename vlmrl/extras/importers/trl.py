"""Rows of TRL: `prompt` (text or messages), `image` or `images`, and the answer in a column of its own.

    {"prompt": [{"role": "user", "content": "How many?"}], "image": "a.png", "solution": "<answer>3</answer>"}

The gold answer is `answer`, else `solution`, else `ground_truth`, else the `completion` of a prompt-completion row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.build import build
from vlmrl.extras.importers.chat import merged, read_chat, read_prompt
from vlmrl.extras.importers.fields import Found, id_of, left_over, list_of, optional_text, options_of

name = "trl"
_ANSWERS = ("answer", "solution", "ground_truth")
_USED = ("id", "prompt", "image", "images", "video", "videos", "options", "completion", "task", "thought")


def detect(row: Mapping[str, Any]) -> bool:
    """`prompt` without the keys of verl and of our own schema."""
    return "prompt" in row and not {"reward_model", "answer_type", "task", "gt", "problem", "messages", "conversations"} & set(row)


def convert(row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """A row of our schema.

    Raises:
        RowError: naming the key at fault.
    """
    chat = read_prompt(row.get("prompt"), "prompt", several=options.turns is not None)
    given = next((key for key in _ANSWERS if row.get(key) is not None), None)
    answer = row[given] if given is not None else _completion(row.get("completion"))
    if chat.answer is not None:
        if answer is not None or options.turns is None:
            raise RowError(
                "turns", "'prompt' ends with a turn of the assistant; the answer belongs in 'answer', 'solution' or 'completion'"
            )
        answer = chat.answer
    if answer is None:
        raise RowError("missing_key", f"no gold answer: one of {', '.join(_ANSWERS)} or 'completion' is needed")
    return build(
        Found(
            question=chat.question,
            history=chat.history,
            answer=answer,
            images=merged(chat.images, list_of(row, "image", "images"), "image"),
            videos=merged(chat.videos, list_of(row, "video", "videos"), "video"),
            task=optional_text(row, "task"),
            id=id_of(row, "id"),
            options=options_of(row),
            system=chat.system,
            thought=optional_text(row, "thought"),
            meta=left_over(row, *_USED, *([given] if given is not None else [])),
        ),
        options,
    )


def _completion(value: object) -> str | None:
    """The text of a completion: text, or a list with one message of the assistant."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping) and value[0].get("role") == "assistant":
        return read_chat([{"role": "user", "content": "-"}, value[0]], "completion", several=False).answer
    raise RowError("turns", "'completion' must be text or one message of the assistant")
