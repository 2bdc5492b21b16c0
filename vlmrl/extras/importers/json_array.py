"""Cuts a file that is one JSON list of rows (LLaMA-Factory, ms-swift) into its elements, with line numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from vlmrl.errors import DataError
from vlmrl.extras.importers.foreign_files import about_object

MAX_FILE = 4 << 30
"""Bytes. The whole file is in memory while it is read; a longer one belongs into JSONL."""
_SPACE = re.compile(r"[ \t\r\n]*")


def elements(path: Path) -> Iterator[tuple[int, str]]:
    """(line on which it begins, text) of each element of the list.

    The elements are not judged here: only where each ends is found, so that the caller can name what is wrong with one of them.

    Raises:
        DataError: too large, not UTF-8, not one list, or cut off.
    """
    text = _text(path)
    decoder = json.JSONDecoder()
    place = _after_space(text, 0)
    if text[place : place + 1] != "[":
        raise DataError(about_object(path, text))
    place, line, counted = _after_space(text, place + 1), 1, 0
    first = True
    while text[place : place + 1] != "]":
        if not first:
            if text[place : place + 1] != ",":
                raise _broken(path, text, place, "expected ',' or ']'")
            place = _after_space(text, place + 1)
        first = False
        try:
            _, end = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise _broken(path, text, error.pos, error.msg) from error
        except RecursionError as error:
            raise _broken(path, text, place, "brackets are nested too deeply") from error
        line += text.count("\n", counted, place)
        counted = place
        yield line, text[place:end]
        place = _after_space(text, end)
    if text[place + 1 :].strip():
        raise _broken(path, text, place + 1, "something follows the list")


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_FILE:
            raise DataError(f"{path}: {size} bytes; lists are read whole, up to {MAX_FILE}; convert it to .jsonl")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 (byte {error.start})") from error


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


def _broken(path: Path, text: str, place: int, what: str) -> DataError:
    line = text.count("\n", 0, place) + 1
    return DataError(f"{path}:{line}: not a whole JSON list: {what} at character {place}; is the file complete?")
