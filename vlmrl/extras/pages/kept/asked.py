"""What an evaluation keeps for its page, in a folder `frames`: what was asked, the first prompts as the model saw them, and pixels.

`questions.jsonl` has of every question its text, its gold answer and the digest that tells it from all others, and of those whose media are
kept what drawing needs; `prompts.jsonl` has prompts as text from the token ids, placeholders counted; `media/` is as that of kept groups,
without loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.evals.score.records import prompt_ids_hash, sample_hash
from vlmrl.evals.score.steps import true_steps
from vlmrl.extras.pages.kept.media import encoded, most_frames, path_of
from vlmrl.extras.pages.kept.read import MEDIA, object_of
from vlmrl.extras.pages.kept.record import content_id, drawable
from vlmrl.media.store import MediaStore, ProcessedMedia
from vlmrl.types import MediaHandle, Prompt, Sample

PROMPTS, QUESTIONS = "prompts.jsonl", "questions.jsonl"
HEAD = 400
"""Characters of a question and of its gold answer that are kept."""
KEPT = 200
"""Prompts of a task that are kept."""
SHOWN = 24
"""Questions of each task whose pixels are kept."""


def keep(folder: Path, piece: Callable[[Sequence[int]], str], prompts: Sequence[Prompt], store: MediaStore) -> None:
    """Keep what a task (or a stage of a run) asks.

    Args:
        folder: `<run>/eval/frames`, or `<out>/frames` of an evaluation.
        piece: text of ids, control tokens included (`ProcessorBundle.piece`).
    """
    first = prompts[:SHOWN]
    _add(folder / PROMPTS, prompts[:KEPT], prompt_ids_hash, lambda one: {"prompt": written(one, piece)})
    for key in dict.fromkeys(handle.key for prompt in first for handle in prompt.media):
        if not path_of(folder / MEDIA, key).exists():
            keep_pixels(folder, store.get_key(key))
    _add(folder / QUESTIONS, first, sample_hash, lambda one: question_line(one.sample, one.media, shown=True))
    _add(folder / QUESTIONS, prompts[SHOWN:], sample_hash, lambda one: question_line(one.sample, one.media, shown=False))


def question_line(sample: Sample, media: Sequence[MediaHandle], *, shown: bool) -> dict[str, Any]:
    """What is kept of a question; `shown`: its pixels are, so what drawing needs is kept too."""
    line = {"content": content_id(sample, media), "question": sample.asked[:HEAD], "gold": sample.answer[:HEAD]}
    return {**line, **drawable(sample, media), "steps": [asdict(one) for one in true_steps(sample)]} if shown else line


def keep_pixels(folder: Path, shown: ProcessedMedia) -> None:
    """Keep a medium as the model saw it."""
    fs.mkdir(folder / MEDIA)
    fs.write_bytes(path_of(folder / MEDIA, shown.handle.key), encoded(shown, most_frames(shown), lossless=True))


def written(prompt: Prompt, piece: Callable[[Sequence[int]], str]) -> list[tuple[str, int]]:
    """The prompt's ids as (text, how often it stands there). Equal ids that follow each other in the place of a medium are one entry."""
    places = {column for start, end in prompt.spans for column in range(start, end)}
    out: list[tuple[str, int]] = []
    for (visual, _), run in groupby(enumerate(prompt.ids), lambda one: (one[0] in places, one[1] if one[0] in places else None)):
        ids = [token for _, token in run]
        out.append((piece(ids[:1]), len(ids)) if visual else (piece(ids), 1))
    return out


def _add(path: Path, prompts: Sequence[Prompt], named: Callable[[Prompt], str], line: Callable[[Prompt], Mapping[str, Any]]) -> None:
    """Add lines to those of a file, unless they are there by their hash (`named`)."""
    found = read_lines(path)
    new = {name: prompt for prompt in prompts if (name := named(prompt)) not in found}
    if new:
        fs.mkdir(path.parent)
        before = path.read_text(encoding="utf-8") if found else ""
        fs.write_text(path, before + "".join(json.dumps({"hash": name, **line(prompt)}) + "\n" for name, prompt in new.items()))


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Hash -> line of a file of prompts (`prompt`) or questions (`content`, `question`, `gold`); none where there is no file."""
    wanted = {"hash", "prompt"} if path.name == PROMPTS else {"hash", "content", "question", "gold"}
    out: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else (), start=1):
        row = object_of(line)
        if row is None or not wanted <= set(row):
            raise StorageError(f"{path}:{number}: not a kept prompt or question; remove the file and evaluate again")
        out[str(row["hash"])] = row
    return out
