"""Reading a pickle that holds plain data only. Nothing in it can run.

Some old datasets publish annotations as pickles of lists, dicts, texts and numbers. Unpickling would execute whatever the file says;
here its instructions are only decoded (`pickletools`), and the few that build plain containers are followed. Any other instruction,
such as naming a class or calling something, is an error.
"""

from __future__ import annotations

import pickletools
from typing import Any

from vlmrl.errors import DataError

_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
}
_BYTES = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
"""Texts of Python 2."""
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_IGNORED = {"PROTO", "FRAME", "STOP"}
_PUT = {"PUT", "BINPUT", "LONG_BINPUT"}
_GET = {"GET", "BINGET", "LONG_BINGET"}
_MARK = object()


def load_plain(data: bytes, name: str) -> Any:
    """The value of a pickle of protocol 0 to 5 made of lists, dicts, tuples, texts, numbers, booleans and None.

    Raises:
        DataError: it holds anything else, or is damaged; `name` says which file.
    """
    machine = _Machine(name)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name}: not a complete pickle of plain data ({type(error).__name__}: {error})") from error
    return value


class _Machine:
    def __init__(self, name: str):
        self.name = name
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _BYTES:
            # Decoded byte by byte by pickletools; most such texts are UTF-8.
            self.stack.append(argument.encode("latin-1").decode("utf-8"))
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _PUT:
            self.memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in _GET:
            self.stack.append(self.memo[int(argument)])
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name not in _IGNORED and not self._container(name):
            raise DataError(f"{self.name}: the pickle uses '{name}'; only plain lists, dicts, texts and numbers are read, never code")

    def _container(self, name: str) -> bool:
        """Build or fill a container; False if `name` is no such instruction."""
        stack = self.stack
        if name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE"):
            stack.append({"EMPTY_LIST": [], "EMPTY_DICT": {}, "EMPTY_TUPLE": ()}[name])
        elif name == "LIST":
            stack.append(self._marked())
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "DICT":
            items = self._marked()
            stack.append(dict(zip(items[::2], items[1::2], strict=True)))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self._marked()
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self._marked()
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        else:
            return False
        return True

    def _marked(self) -> list[Any]:
        """Take everything above the last mark, and the mark."""
        start = max(i for i, item in enumerate(self.stack) if item is _MARK)
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items
