"""Rows of verl: messages, media lists, and `reward_model.ground_truth`.

    {"data_source": "geo3k", "prompt": [{"role": "user", "content": "<image>Find x."}], "images": ["a.png"], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "48"}, "extra_info": {"split": "train", "index": 3}}

`data_source` becomes `source`; `ability` says the answer type where it is `math`; the id is `extra_info.split`-`extra_info.index`
behind the data source. `extra_info` and all other columns go to `meta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.build import build
from vlmrl.extras.importers.chat import merged, read_prompt
from vlmrl.extras.importers.fields import Found, id_of, left_over, list_of, mapping_of, optional_text, options_of

name = "verl"
_USED = ("id", "uid", "data_source", "prompt", "image", "images", "video", "videos", "reward_model", "options", "task")
_STYLES = ("rule",)


def detect(row: Mapping[str, Any]) -> bool:
    """`prompt` and `reward_model`."""
    return "prompt" in row and "reward_model" in row and "answer_type" not in row


def convert(row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """A row of our schema.

    Raises:
        RowError: naming the key at fault.
    """
    model = mapping_of(row, "reward_model")
    if model.get("ground_truth") is None:
        raise RowError("missing_key", "'reward_model.ground_truth' is missing")
    style = model.get("style", "rule")
    if style not in _STYLES:
        raise RowError("bad_value", f"'reward_model.style' is {str(style)[:40]!r}; known: {', '.join(_STYLES)} (an answer to compare with)")
    chat = read_prompt(row.get("prompt"), "prompt", several=options.turns is not None)
    if chat.answer is not None:
        raise RowError("turns", "'prompt' ends with a turn of the assistant; the answer is 'reward_model.ground_truth'")
    ability = optional_text(row, "ability")
    return build(
        Found(
            question=chat.question,
            history=chat.history,
            answer=model["ground_truth"],
            images=merged(chat.images, list_of(row, "image", "images"), "image"),
            videos=merged(chat.videos, list_of(row, "video", "videos"), "video"),
            answer_type="math" if ability == "math" and options.answer_type is None else None,
            task=optional_text(row, "task"),
            id=id_of(row, "id", "uid") or _place(row),
            options=options_of(row),
            system=chat.system,
            source=optional_text(row, "data_source"),
            meta=left_over(row, *_USED, "audios"),
        ),
        options,
    )


def _place(row: Mapping[str, Any]) -> str | None:
    """`data_source/split-index`, if `extra_info` has an index."""
    extra = mapping_of(row, "extra_info")
    index = id_of(extra, "index")
    if index is None:
        return None
    parts = [part for part in (optional_text(row, "data_source"), id_of(extra, "split")) if part]
    return "-".join([*parts, index])
