"""What was asked, kept beside the pixels of a report: prompts as the model saw them (`prompts.jsonl`: text from the token ids, placeholders
counted), and of every question its text, its gold answer and the digest that tells it from all others (`questions.jsonl`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.evals.score.records import prompt_ids_hash, sample_hash
from vlmrl.extras.pages.kept.record import content_id
from vlmrl.types import Prompt

FILE, QUESTIONS = "prompts.jsonl", "questions.jsonl"
HEAD = 400
"""Characters of a question and of its gold answer that are kept."""
KEPT = 200
"""Prompts of a task that are kept for its report."""
Written = tuple[tuple[str, int], ...]
"""(text, how often it stands there) in order."""
Piece = Callable[[Sequence[int]], str]
"""Text of ids, control tokens included (`ProcessorBundle.piece`)."""


def written(prompt: Prompt, piece: Piece) -> Written:
    """The prompt's ids as text. Equal ids that follow each other in the place of a medium are one entry with their number."""
    places = {column for start, end in prompt.spans for column in range(start, end)}
    columns = enumerate(prompt.ids)
    out: list[tuple[str, int]] = []
    for (visual, _), run in groupby(columns, lambda column: (column[0] in places, column[1] if column[0] in places else None)):
        ids = [token for _, token in run]
        out.append((piece(ids[:1]), len(ids)) if visual else (piece(ids), 1))
    return tuple(out)


def keep_prompts(folder: Path, prompts: Sequence[Prompt], piece: Piece) -> None:
    """Add the first prompts of a task to those in `folder`, unless they are there.

    Raises:
        StorageError: the file is damaged or cannot be written.
    """
    path = folder / FILE
    found = read_prompts(folder)
    new = {prompt_ids_hash(prompt): prompt for prompt in prompts[:KEPT]}
    kept = {**found, **{name: written(prompt, piece) for name, prompt in new.items() if name not in found}}
    if len(kept) > len(found):
        fs.mkdir(folder)
        fs.write_text(path, "".join(json.dumps({"hash": name, "prompt": pieces}) + "\n" for name, pieces in kept.items()))


def read_prompts(folder: Path) -> dict[str, Written]:
    """`Record.prompt_ids_hash` -> the prompt, of all that `keep_prompts` has kept there; empty where it kept none.

    Raises:
        StorageError: the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    out: dict[str, Written] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row: Mapping[str, list[list[str | int]]] = json.loads(line)
            out[str(row["hash"])] = tuple((str(text), int(count)) for text, count in row["prompt"])
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{path}:{number}: not a kept prompt ({error!r}); remove the file and evaluate again") from error
    return out


def keep_questions(folder: Path, prompts: Sequence[Prompt]) -> None:
    """Add what was asked to that in `folder`, unless it is there.

    Raises:
        StorageError: the file is damaged or cannot be written.
    """
    found = read_questions(folder)
    new = {name: prompt for prompt in prompts if (name := sample_hash(prompt)) not in found}
    lines = [
        {
            "hash": name,
            "content": content_id(prompt.sample, [(one.kind, one.key) for one in prompt.media]),
            "question": prompt.sample.asked[:HEAD],
            "gold": prompt.sample.answer[:HEAD],
        }
        for name, prompt in new.items()
    ]
    if lines:
        fs.mkdir(folder)
        before = (folder / QUESTIONS).read_text(encoding="utf-8") if found else ""
        fs.write_text(folder / QUESTIONS, before + "".join(json.dumps(line) + "\n" for line in lines))


def read_questions(folder: Path) -> dict[str, dict[str, str]]:
    """`Record.sample_hash` -> `content`, `question` and `gold`; empty where an earlier version kept none.

    Raises:
        StorageError: the file is damaged.
    """
    path = folder / QUESTIONS
    out: dict[str, dict[str, str]] = {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else (), start=1):
        try:
            row = json.loads(line)
            out[str(row["hash"])] = {key: str(row[key]) for key in ("content", "question", "gold")}
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{path}:{number}: not a kept question ({error!r}); remove the file and evaluate again") from error
    return out
