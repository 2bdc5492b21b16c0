"""Shared by preparation scripts that read Hugging Face data sets: Parquet files with pictures inside, questions
with options beside or within their text, and masks as pictures.

Records that cannot become a row are `RowError`; `made` turns them into a `Skipped` with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmrl.errors import DataError, RowError
from vlmrl.extras.importers.prepare.prepare import Embedded, Row, Skipped, letter, lettered
from vlmrl.media.image import decode_image

Record = Mapping[str, Any]
Mask = NDArray[np.bool_]
BATCH = 16
"""Records in memory at a time: each may hold several large pictures."""
POINTS_ASK = "Points are [x, y], with coordinates from 0 to 1000 along each side of the image."
"""Ours, in place of the release's own sentence about the form of the answer."""
_LABEL = re.compile(r"(?:^|(?<=[\s,;]))\(?([A-Z])(?:\)|[.:](?![.:]))\s*")
_ANSWER = re.compile(r"\s*<answer>\s*(.*?)\s*</answer>\s*", re.DOTALL)
_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:]?")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


# Reading.


def records(root: Path, *patterns: str) -> Iterator[Record]:
    """The records of all Parquet files of the first of `patterns` (globs below `root`) that any file fits, in the order of their names.

    Raises:
        DataError: no file fits, one is not Parquet, or pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # heavy
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError(f"{root}: reading Parquet needs pyarrow; `pip install pyarrow`") from error
    paths = next((found for found in (sorted(root.glob(pattern)) for pattern in patterns) if found), [])
    if not paths:
        raise DataError(f"{root}: no file {' or '.join(patterns)}; card.md says how the official download is laid out")
    for path in paths:
        try:
            file = parquet.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise DataError(f"{path}: not a Parquet file ({error}); is the download complete?") from error
        for batch in file.iter_batches(batch_size=BATCH):
            yield from batch.to_pylist()


def file_or_parquet(root: Path, file: str, read: Callable[[Path], Iterable[Record]], pattern: str) -> Iterable[Record]:
    """The records that `read` finds in `file`, for releases that are also published as plain files; where it is not there, `records`.

    Raises:
        DataError: neither is there; the text names both.
    """
    if (root / file).is_file():
        return read(root / file)
    if not any(root.glob(pattern)):
        raise DataError(f"{root}: no file {file} or {pattern}; card.md says how the official download is laid out")
    return records(root, pattern)


def made(name: str, make: Callable[[], Row], unit: object = None) -> Row | Skipped:
    """A row, or its record as skipped, with what is wrong with it. `unit` is its value of the unit that the card counts."""
    try:
        return make()
    except RowError as error:
        return Skipped(name, str(error), unit)


def image_bytes(value: object) -> bytes:
    """The encoded bytes of a picture column, which holds {bytes, path} or the bytes themselves.

    Raises:
        RowError: `missing_picture`: it holds none.
    """
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes) or not data:
        raise RowError("missing_picture", "the picture is not in the file")
    return data


def picture(value: object, path: str) -> Embedded:
    """The picture of a column as a medium at `path`, which gets the suffix of its format.

    Raises:
        RowError: `missing_picture`, or `format`: neither PNG, JPEG nor WebP, which are what is read later.
    """
    data = image_bytes(value)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return Embedded(f"{path}.png", data)
    if data.startswith(b"\xff\xd8\xff"):
        return Embedded(f"{path}.jpg", data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Embedded(f"{path}.webp", data)
    raise RowError("format", f"the picture begins with {data[:8]!r}, which is neither PNG, JPEG nor WebP")


# Rows.


def question_row(name: str, *, task: str, images: Sequence[Embedded | str], prompt: str, meta: Mapping[str, Any]) -> Row:
    """The part of a row that does not depend on the kind of its answer.

    Placeholders `<image>` in the text are taken out: the pictures stand before it. References such as `<image1>` stay.

    Raises:
        RowError: `bad_value`: there is no text.
    """
    text = prompt.replace("<image>", "").strip()
    if not text:
        raise RowError("bad_value", "the question has no text")
    kind = "image" if len(images) == 1 else "multi_image"
    return {"id": name, "task": task, "data_type": kind, "images": list(images), "prompt": text, "meta": dict(meta)}


def choice(row: Row, options: Sequence[str], right: int | str) -> Row:
    """A question with its options beside it, without letters of their own; `right` is an index from 0, or a letter such as `B`, `(b)`.

    Raises:
        RowError: `bad_value`: an option is blank, or there is no option `right`.
    """
    if not options or not all(option.strip() for option in options):
        raise RowError("bad_value", f"options {list(options)} are none or blank")
    index = right if isinstance(right, int) else ord(letter_of(right)) - ord("A")
    if not 0 <= index < len(options):
        raise RowError("bad_value", f"the right option is {right!r}, but there are {len(options)}")
    return {**row, "answer_type": "choice", "options": lettered(options), "answer": letter(index)}


def inline_choice(row: Row, right: str) -> Row:
    """A question whose options stand within its text. They are listed too where they can be found there, so that an answer by their text
    counts as well; else only letters do.

    Raises:
        RowError: `bad_value`: `right` is not one letter.
    """
    answer = letter_of(right)
    options = inline_options(row["prompt"])
    known = ord(answer) - ord("A") < len(options)
    return {**row, "answer_type": "choice", "answer": answer, **({"options": options} if known else {})}


def letter_of(text: str) -> str:
    """`B` for `B`, `b`, `(B)`, `B.`.

    Raises:
        RowError: `bad_value`: it is anything else.
    """
    found = _LETTER.fullmatch(text.strip())
    if found is None:
        raise RowError("bad_value", f"answer {text!r} is not the letter of an option")
    return found[1].upper()


def inline_options(question: str) -> list[str]:
    """The options within a text, each with its label and as it stands there (`A. left`, `(B) right`, `C: up`); empty if there are none.

    They are the last run of labels A, B, ... in the text, each option reaching to the next label, the last to the end of its line.
    """
    labels = list(_LABEL.finditer(question))
    for first in range(len(labels) - 1, -1, -1):
        run = _run(labels[first:])
        if len(run) > 1:
            ends = [*(label.start() for label in run[1:]), len(question)]
            texts = [question[label.start() : end].strip().rstrip(",;").rstrip() for label, end in zip(run, ends, strict=True)]
            texts[-1] = texts[-1].split("\n")[0].rstrip()
            return [] if any(text == label.group().strip() for text, label in zip(texts, run, strict=True)) else texts
    return []


def _run(labels: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    """The labels A, B, C, ... among these, beginning with the first; empty if that is not A."""
    run: list[re.Match[str]] = []
    for label in labels:
        if label[1] == chr(ord("A") + len(run)):
            run.append(label)
        elif not run:
            return []
    return run


def number_or(row: Row, answer: str, other: str) -> Row:
    """A row of type `number` where the gold answer is written as one plain number, else of type `other`."""
    plain = answer.strip()
    if _NUMBER.fullmatch(plain):
        return {**row, "answer_type": "number", "answer": plain, "gt": {"number": float(plain.replace(",", ""))}}
    return {**row, "answer_type": other, "answer": answer}


def answer_block(solution: str) -> str:
    """The gold answer of R1-V's sets, whose solution is one block `<answer> 3 </answer>`.

    Raises:
        RowError: `bad_value`: it is something else, or empty.
    """
    found = _ANSWER.fullmatch(solution)
    if found is None or not found[1]:
        raise RowError("bad_value", "solution is not one answer block")
    return found[1]


def texts(row: Row, answers: Sequence[str]) -> Row:
    """A row of type `short_text` with every accepted text, the first as its answer.

    Raises:
        RowError: `bad_value`: there is none.
    """
    known = [answer for answer in answers if answer.strip()]
    if not known:
        raise RowError("bad_value", "there is no answer")
    return {**row, "answer_type": "short_text", "answer": known[0], "gt": {"answers": known}}


def document_rows(items: Iterable[Record], split: str, *, dataset: str, kinds: str, ask: str) -> Iterator[Row | Skipped]:
    """Questions over documents with every accepted answer, as DocVQA has them, with the picture inside or its path.

    `meta.category` is the first of the column `kinds`, `other` where there is none; `ask` is added to the question.
    """

    def row(name: str, item: Record) -> Row:
        made_of = question_row(
            name,
            task=dataset,
            images=[item["image"] if isinstance(item["image"], str) else picture(item["image"], f"{split}/{item['questionId']}")],
            prompt=f"{item['question'].strip()} {ask}",
            meta={"split": split, "category": (item.get(kinds) or ["other"])[0]},
        )
        return texts(made_of, item["answers"])

    for item in items:
        name = f"{dataset}-{split}-{item['questionId']}"
        yield made(name, partial(row, name, item))


# Masks.


def pointing(row: Row, mask: Mask) -> Row:
    """A row of type `point` whose points have to lie on `mask` (bool [H, W], covering the whole picture), asked for in `norm1000`.

    Raises:
        RowError: `bad_value`: the mask is empty.
    """
    x, y = _inside(mask)
    return {
        **row,
        "answer_type": "point",
        "prompt": f"{row['prompt']} {POINTS_ASK}",
        "answer": json.dumps({"points": [[x, y]]}),
        "gt": {"mask": run_lengths(mask)},
        "meta": {**row["meta"], "frame": "norm1000"},
    }


def mask_of(data: bytes, *, at_least: int) -> Mask:
    """bool [H, W] of an encoded picture: where its first channel is `at_least` (1 to 255). MediaError if it cannot be decoded."""
    return decode_image(data)[..., 0] >= at_least


def run_lengths(mask: Mask) -> dict[str, list[int]]:
    """`{"size": [H, W], "counts": [...]}` as `metrics.points.decode_mask` reads it: columns first, starting with pixels outside."""
    flat = mask.T.reshape(-1)
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate(([0], edges, [flat.size]))).tolist()
    return {"size": [int(side) for side in mask.shape], "counts": [0, *counts] if flat.size and flat[0] else counts}


def _inside(mask: Mask) -> tuple[float, float]:
    """(x, y) of 0 to 1000: the middle of the pixel of the mask that is nearest to the mean of its pixels."""
    rows, columns = np.nonzero(mask)
    if not rows.size:
        raise RowError("bad_value", "the mask is empty")
    nearest = int(np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2))
    height, width = mask.shape
    return round((float(columns[nearest]) + 0.5) * 1000 / width, 2), round((float(rows[nearest]) + 0.5) * 1000 / height, 2)
