"""What importing torch and transformers does at length, done shortly, with the same result.

* `torch._library.utils.get_source` says in which file and line an operator is registered, and reads the file for it; the frame knows.
* `transformers.utils.import_utils` looks for `__all__` in each of its thousand files of models, line by line, and twice: for `transformers`
  and for `transformers.models`. Here it looks once, and begins at the last line that can be meant.
* A large import makes many objects that stay. Python's collector looks through all of them again and again, and finds nothing: it rests
  during the import, and leaves out afterwards what was there then (`gc.freeze`).

`after` is called with a module when it has been run; what a version of it has not is left alone. `vlmrl.extras.install.later` asks.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def operators(module: Any) -> None:
    """Name the place of a registration (`file:line` of the caller that many levels above) without reading its source."""

    def get_source(stacklevel: int) -> str:
        frame = sys._getframe(stacklevel)  # pyright: ignore[reportPrivateUsage]
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"

    if hasattr(module, "get_source"):
        module.get_source = get_source


def structure(module: Any) -> None:
    """Read the names that the files of a folder offer once for each folder, and with them no more of a file than its end."""
    names = ("fetch__all__", "create_import_structure_from_path", "spread_import_structure")
    if not all(hasattr(module, name) for name in names):
        return
    fetch, create, spread = (getattr(module, name) for name in names)

    @functools.wraps(fetch)
    def fetch_last(file_content: str) -> list[str]:
        at = file_content.rfind("\n__all__")  # of several lines that begin so the last one counts
        return fetch(file_content if at < 0 else file_content[at + 1 :])

    made: dict[str, Any] = {}

    @functools.wraps(create)
    def create_once(module_path: Any) -> Any:
        folder = os.fspath(module_path) if os.path.isdir(module_path) else os.path.dirname(module_path)
        if folder not in made:
            made[folder] = create(folder)
        return made[folder]

    done: list[tuple[Any, Any]] = []

    @functools.wraps(spread)
    def spread_once(nested_import_structure: Any) -> Any:
        flat = next((flat for nested, flat in done if nested is nested_import_structure), None)
        if flat is None:
            flat = spread(nested_import_structure)
            done.append((nested_import_structure, flat))
        return {backends: dict(modules) for backends, modules in flat.items()}

    module.fetch__all__, module.create_import_structure_from_path, module.spread_import_structure = fetch_last, create_once, spread_once


AFTER: Mapping[str, Callable[[Any], None]] = {"torch._library.utils": operators, "transformers.utils.import_utils": structure}
"""Module -> what is called with it."""
UNCOLLECTED = ("torch", "torchvision.models", "transformers", "transformers.models.auto.processing_auto")
"""Modules during whose import the collector rests. `torchvision` itself is none: `vlmrl.compat` watches for it."""


class Cheaper(Loader):
    """Runs a module as its own loader does, and leaves that one in its place."""

    def __init__(self, inner: Any, spec: ModuleSpec):
        self._inner, self._spec = inner, spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._inner
        if self._spec.name in UNCOLLECTED:
            with resting():
                self._inner.exec_module(module)
        else:
            self._inner.exec_module(module)
        AFTER.get(self._spec.name, lambda module: None)(module)


@contextlib.contextmanager
def resting() -> Iterator[None]:
    """Let the collector rest, and leave out what there is at the end from then on."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if collects:
            gc.enable()
