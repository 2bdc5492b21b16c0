"""Makes rows of video question sets: one clip, one question, and options with or without their letters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import DataError
from vlmrl.extras.importers.prepare.prepare import Row, letter, lettered

SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm", ".avi")
_LETTER = re.compile(r"\s*\(?([A-Z])\s*[.:)]\s*")


def with_letters(options: Sequence[str], *, least: int = 2) -> list[str]:
    """`A. ...`, `B. ...`; options that all come with these letters already (`A. x`, `(A) x`, `A: x`) get this one form.

    Raises:
        DataError: there are fewer than `least`, more than 26, or one without text.
    """
    found = [_LETTER.match(option) for option in options]
    marked = bool(options) and all(match is not None and match[1] == letter(i) for i, match in enumerate(found))
    texts = [option[match.end() if marked and match else 0 :].strip() for option, match in zip(options, found, strict=True)]
    if len(texts) < least or not all(texts):
        raise DataError(f"options {list(options)} are not at least {least} texts")
    return lettered(texts)


def choice_row(
    *,
    id: str,
    task: str,
    video: str,
    question: str,
    options: Sequence[str],
    answer: str,
    meta: Mapping[str, Any],
    note: str = "",
    least: int = 2,
) -> Row:
    """A row of one clip with a multiple choice question.

    Args:
        options: with or without letters.
        answer: the letter of the right option (`B`, `B.`, `(B)`).
        note: what is said before the question; empty: nothing.
        least: the fewest options that a question of the set has.

    Raises:
        DataError: the answer is the letter of none of the options.
    """
    shown = with_letters(options, least=least)
    right = answer.strip().strip("().")
    if right not in [option[0] for option in shown]:
        raise DataError(f"{id}: answer {answer!r} is the letter of none of its {len(shown)} options")
    row = video_row(id=id, task=task, video=video, question=question, meta=meta, note=note)
    return {**row, "answer_type": "choice", "options": shown, "answer": right}


def video_row(*, id: str, task: str, video: str, question: str, meta: Mapping[str, Any], note: str = "") -> Row:
    """A row of one clip without its answer."""
    prompt = f"{note}\n{question.strip()}" if note else question.strip()
    return {"id": id, "task": task, "data_type": "video", "video": video, "prompt": prompt, "meta": dict(meta)}


def found_video(root: Path, stem: str) -> str:
    """`stem` with the suffix of the file that is there, relative to `root`; `.mp4` where there is none."""
    return next((f"{stem}{suffix}" for suffix in SUFFIXES if (root / f"{stem}{suffix}").is_file()), f"{stem}.mp4")


def converted_video(root: Path, path: str) -> str:
    """`path`, or the file of its name in another format that is below `root` in its place: clips were converted, and lists not changed."""
    if (root / path).is_file():
        return path
    converted = found_video(root, path.rpartition(".")[0])
    return converted if (root / converted).is_file() else path
