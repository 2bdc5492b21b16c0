"""Builds a row of our schema from the parts that an adapter took out of a foreign row: the rules that hold for all shapes.

- The system prompt is not part of the prompt; it is kept in `meta.system`. The recipe's `answer_format` asks for the answer format.
- Instructions about the answer format at the start or end of the question are cut and kept in `meta.instructions`
  (`instructions: keep` leaves them in).
- Columns without a meaning here go to `meta` under their own names.
- A size that the row states of its pictures must be that of the files.
- Where the row has videos and no picture, as many `<image>` as videos stand for them (LLaVA-Video).
- What the row says of its answer type and task comes first, then what the source says; without either the row is an error, except
  where there is only one reading: options make a `choice`.
"""

from __future__ import annotations

import re
from typing import Any, cast

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.data.adapters.base import ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.fields import Found, media_entry
from vlmrl.extras.importers.gold import GoldContext
from vlmrl.extras.importers.sizes import check_sizes
from vlmrl.extras.importers.text import cut_instructions, has_numbers, place_media, unwrap

_TOP = ("difficulty", "trajectory")
"""Keys of foreign rows that our schema has too, with the same meaning."""


def build(found: Found, options: ImportOptions) -> dict[str, Any]:
    """A row of our schema, without `id` if the foreign row has none.

    Raises:
        RowError: naming what is wrong.
    """
    meta = dict(found.meta)
    row: dict[str, Any] = {key: meta.pop(key) for key in _TOP if key in meta}
    for key in ("data_type", "source", "options", "frame", "size"):
        if key in meta:
            meta[f"original_{key}"] = meta.pop(key)
    images = _media(found.images, "images", meta, options)
    videos = _media(found.videos, "videos", meta, options)
    if options.media_dir is not None and not videos:
        check_sizes(found.meta, [image["path"] if isinstance(image, dict) else image for image in images], options)
    if videos and not images:
        _mean_videos(found, len(videos))
    answer, thought = _answer(found)
    answer_type = _answer_type(found, options)
    first = images[0] if images else None
    path = first["path"] if isinstance(first, dict) else first
    context = GoldContext(found, options, path)
    true = ANSWER_TYPES[answer_type].convert(answer, context)
    question, instructions = _without_instructions(found.question, options)
    history = [{"prompt": _without_instructions(asked, options)[0].strip(), "answer": told} for asked, told in found.history]
    if history and has_numbers([asked["prompt"] for asked in history] + [question]):
        raise RowError("placeholder", "several turns with numbered placeholders (<image 1>) are not read; number them in one turn only")
    prompt, choices = place_media(question, found.options if true.options is None else true.options, len(images), len(videos))
    for key, value in (("system", found.system), ("instructions", instructions)):
        if value:
            meta[key] = value
    if true.framed:
        meta["frame"] = options.to_frame
        if options.to_frame == "pixel":
            # Distances between points in pixels are judged against the sides of the picture.
            meta["size"] = list(context.size("size"))
    row |= {"task": found.task or options.task or answer_type, "answer_type": answer_type, "prompt": prompt, "answer": true.answer}
    optional = {
        "id": found.id,
        "images": images,
        "videos": videos,
        "options": choices,
        "history": history,
        "gt": true.gt,
        "thought": thought,
        "data_type": found.data_type,
        "source": found.source,
        "meta": meta,
    }
    return row | {key: value for key, value in optional.items() if value}


def _without_instructions(question: str, options: ImportOptions) -> tuple[str, str]:
    return (question, "") if options.instructions == "keep" else cut_instructions(question)


def _mean_videos(found: Found, videos: int) -> None:
    """`<image>` for a video, where the row has no picture and the counts leave one reading only."""
    texts = [found.question, *(asked for asked, _ in found.history)]
    if any("<video>" in text for text in texts) or sum(text.count("<image>") for text in texts) != videos:
        return
    found.question = found.question.replace("<image>", "<video>")
    found.history = [(asked.replace("<image>", "<video>"), told) for asked, told in found.history]


def _media(items: list[object], place: str, meta: dict[str, Any], options: ImportOptions) -> list[Any]:
    out: list[Any] = []
    for i, item in enumerate(items):
        entry, processing = media_entry(item, f"{place}[{i}]", options.media_dir, options.frames_fps)
        out.append(entry)
        if processing:
            meta.setdefault("media_options", {})[f"{place}[{i}]"] = processing
    return out


def _answer(found: Found) -> tuple[object, str | None]:
    """(the gold answer without its wrapping, the reference thought)."""
    if found.answer is None:
        raise RowError("missing_key", "the row has no gold answer")
    given = found.answer
    if isinstance(given, list) and len(cast("list[object]", given)) == 1 and isinstance(given[0], str):
        given = given[0]
    answer, inner = unwrap(given) if isinstance(given, str) else (given, None)
    return answer, found.thought or inner


def _answer_type(found: Found, options: ImportOptions) -> str:
    name = found.answer_type or options.answer_type
    if name is None and found.options:
        name = "choice"
    if name is None:
        known = ", ".join(ANSWER_TYPES)
        raise RowError("answer_type", f"nothing says how the answer is to be read; set 'answer_type' of the source to one of {known}")
    problem = ANSWER_TYPES.problem(name)
    if problem is not None:
        raise RowError("answer_type", problem)
    return name


def kind_of(name: object, table: dict[str, str | None], key: str) -> str:
    """The answer type that a foreign name stands for; letters, spaces, hyphens and underscores are not told apart.

    Raises:
        RowError: `problem_type`: unknown, or one that this package has no answer type for (None in the table).
    """
    if not isinstance(name, str):
        raise RowError("bad_type", f"'{key}' must be text, got {type(name).__name__}")
    plain = re.sub(r"[\s_\-]+", " ", name.strip().lower())
    known = ", ".join(sorted(name for name, kind in table.items() if kind is not None))
    if plain not in table:
        raise RowError("problem_type", f"'{key}' is {name[:60]!r}; known: {known}")
    kind = table[plain]
    if kind is None:
        raise RowError("problem_type", f"'{key}' is {name[:60]!r}, for which there is no answer type; known: {known}")
    return kind
