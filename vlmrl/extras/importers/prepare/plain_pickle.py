"""Reads a pickle of plain data only, with a restricted `Unpickler` (Python manual, "Restricting Globals").

Some old datasets publish annotations as pickles of lists, dicts, texts and numbers. A pickle can run code only through a class or
function that it names, or through a persistent id; both are refused, so nothing in the file can run.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from vlmrl.errors import DataError


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dicts, tuples, texts, numbers, booleans and None; everything else needs a name that is refused here."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise DataError(f"the pickle names '{module}.{name}'; only plain lists, dicts, texts and numbers are read, never code")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DataError("the pickle uses a persistent id; only plain lists, dicts, texts and numbers are read, never code")


def load_plain(data: bytes, name: str) -> Any:
    """The value of a pickle of protocol 0 to 5 made of lists, dicts, tuples, texts, numbers, booleans and None.

    Texts of Python 2 are read as UTF-8. Sets and bytes are read where a protocol writes them without naming a class (from 4 on).

    Raises:
        DataError: it holds anything else, or is damaged; `name` says which file.
    """
    file = io.BytesIO(data)
    try:
        value = _PlainUnpickler(file, encoding="utf-8").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    except Exception as error:  # a damaged pickle raises whatever its instructions meet (EOFError, IndexError, KeyError, ...)
        raise DataError(f"{name}: not a complete pickle of plain data ({type(error).__name__}: {error})") from error
    if file.read(1):
        raise DataError(f"{name}: not a complete pickle of plain data (bytes follow its end)")
    return value
