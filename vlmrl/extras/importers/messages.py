"""Rows of ms-swift, LLaMA-Factory and ShareGPT: a conversation, lists of media, and boxes in `objects`.

    {"messages": [{"role": "user", "content": "<image>Where is the <ref-object>?"}, {"role": "assistant", "content": "<bbox>"}],
     "images": ["a.png"], "objects": {"ref": ["dog"], "bbox": [[10, 20, 110, 220]], "bbox_type": "real"}}

The gold answer is `solution`, else `answer`, else the assistant's turn. `<ref-object>` and `<bbox>` take the entries of
`objects` in order over all messages. Boxes in the assistant's answer are the gold answer; those in the question and in a thought are
written out in the frame that answers have. `bbox_type` is a frame (`real` is pixels); without it the source's `frame` is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.build import build
from vlmrl.extras.importers.chat import Chat, merged, read_chat
from vlmrl.extras.importers.fields import Found, id_of, left_over, list_of, mapping_of, media_entry, optional_text, options_of
from vlmrl.extras.importers.gold import GoldContext
from vlmrl.extras.importers.sizes import check_sizes
from vlmrl.types import CoordinateFrame

name = "messages"
_USED = ("id", "messages", "message", "conversations", "image", "images", "video", "videos", "objects", "options", "system", "task")
_BOX_TYPES: dict[str, CoordinateFrame] = {"real": "pixel", "norm1": "norm1", "norm1000": "norm1000"}
_OBJECT_KEYS = {"ref", "bbox", "bbox_type", "image_id", "width", "height"}
_MARK = re.compile(r"<(ref-object|bbox)>")
_THOUGHT = re.compile(r"\s*<think(?:ing)?>(.*?)</think(?:ing)?>", re.IGNORECASE | re.DOTALL)


def detect(row: Mapping[str, Any]) -> bool:
    """`messages` (OpenRLHF-M: `message`); or `conversations` without the `image` of LLaVA-style rows."""
    if "answer_type" in row:
        return False
    chat = isinstance(row.get("message"), list) and not {"prompt", "problem", "conversations"} & set(row)
    return "messages" in row or chat or ("conversations" in row and "image" not in row)


def convert(row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """A row of our schema.

    Raises:
        RowError: naming the key at fault.
    """
    keys = [key for key in ("messages", "message", "conversations") if row.get(key) is not None]
    if len(keys) != 1:
        raise RowError("missing_key" if not keys else "bad_value", f"give 'messages' or 'conversations', got {keys}")
    if row.get("tools"):
        raise RowError("unknown_key", "'tools': rows with tools are not read; leave them out")
    chat = read_chat(row[keys[0]], keys[0], several=options.turns is not None)
    given = next((key for key in ("solution", "answer") if row.get(key) is not None), None)
    found = Found(
        question=chat.question,
        history=list(chat.history),
        answer=row[given] if given is not None else chat.answer,
        images=merged(chat.images, list_of(row, "image", "images"), "image"),
        videos=merged(chat.videos, list_of(row, "video", "videos"), "video"),
        task=optional_text(row, "task"),
        id=id_of(row, "id"),
        options=options_of(row),
        system=chat.system or optional_text(row, "system"),
        meta=left_over(row, *_USED, "audios", "tools", *([given] if given is not None else [])),
    )
    if row.get("objects") is not None:
        _fill(found, mapping_of(row, "objects"), chat, options, own_answer=given is not None)
    elif _MARK.search("".join(_said(chat))):
        raise RowError("missing_key", "the messages have <ref-object> or <bbox>, but the row has no 'objects'")
    if found.answer is None:
        raise RowError("missing_key", f"no gold answer: '{keys[0]}' has no turn of the assistant and there is no 'solution'")
    return build(found, options)


def _fill(found: Found, objects: Mapping[str, Any], chat: Chat, options: ImportOptions, *, own_answer: bool) -> None:
    """Put the entries of `objects` in their places in `found`.

    Raises:
        RowError: `objects`: unknown keys, counts that disagree with the marks in the text, or boxes of several pictures.
    """
    unknown = sorted(set(objects) - _OBJECT_KEYS)
    if unknown:
        raise RowError("unknown_key", f"'objects.{unknown[0]}' (known: {', '.join(sorted(_OBJECT_KEYS))})")
    names, boxes = _list(objects, "ref"), _list(objects, "bbox")
    if any(number != 0 for number in _list(objects, "image_id")):
        raise RowError("objects", "'objects.image_id' names a picture other than the first; boxes are read for one picture")
    kind = objects.get("bbox_type")
    if kind is not None and kind not in _BOX_TYPES:
        raise RowError("objects", f"'objects.bbox_type' is {str(kind)[:40]!r}; known: {', '.join(_BOX_TYPES)}")
    found.frame = _BOX_TYPES[kind] if kind is not None else None
    sides = [_list(objects, key) for key in ("width", "height")]
    if all(sides):
        found.size = (_side(sides[0][0]), _side(sides[1][0]))
    marks = [mark for text in _said(chat) for mark in _MARK.findall(text)]
    for mark, have in (("ref-object", names), ("bbox", boxes)):
        if marks.count(mark) != len(have):
            key = "ref" if mark == "ref-object" else "bbox"
            raise RowError("objects", f"the messages have {marks.count(mark)} <{mark}>, 'objects.{key}' has {len(have)}")
    pictures = [media_entry(image, f"images[{i}]", options.media_dir)[0] for i, image in enumerate(found.images)]
    paths = [str(entry["path"]) if isinstance(entry, dict) else entry for entry in pictures]
    check_sizes(objects, paths, options, prefix="objects.")
    path = paths[0] if paths else None
    waiting = {"ref-object": iter(names), "bbox": iter(boxes)}

    def written(match: re.Match[str]) -> str:
        value = next(waiting[match.group(1)])
        if match.group(1) == "bbox":
            return GoldContext(found, options, path).coordinates_text(value)
        if not isinstance(value, str):
            raise RowError("bad_type", f"'objects.ref' must hold texts, got {type(value).__name__}")
        return value

    found.history = [(_MARK.sub(written, asked), _MARK.sub(written, told)) for asked, told in chat.history]
    found.question = _MARK.sub(written, chat.question)
    if own_answer or chat.answer is None:
        return
    thought = _THOUGHT.match(chat.answer)
    if thought is not None and "bbox" in _MARK.findall(chat.answer[thought.end() :]):
        # its boxes come before those of the answer
        found.thought = _MARK.sub(written, thought.group(1)).strip() or None
    gold = [box for box in waiting["bbox"]]
    if gold:
        found.answer = gold
        points = all(isinstance(place, list) and len(place) == 2 for place in gold)
        found.answer_type = "point" if points or options.answer_type == "point" else "bbox"
    else:
        found.answer = _MARK.sub(written, chat.answer)


def _said(chat: Chat) -> list[str]:
    """The texts of the turns, in their order."""
    return [*(text for turn in chat.history for text in turn), chat.question, chat.answer or ""]


def _side(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError("bad_type", f"'objects.width' and 'objects.height' must hold numbers, got {type(value).__name__}")
    return float(value)


def _list(objects: Mapping[str, Any], key: str) -> list[Any]:
    value = objects.get(key)
    if value is not None and not isinstance(value, list):
        raise RowError("bad_type", f"'objects.{key}' must be a list, got {type(value).__name__}")
    return value or []
