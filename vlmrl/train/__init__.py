"""The training step. The package itself can be called: `vlmrl.train(recipe)` is `vlmrl.api.train`."""

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import Any as _Any


class _Callable(_ModuleType):
    """A package that is also the function of its name: `vlmrl.train.step` stays a module of it."""

    def __call__(self, *args: _Any, **kwargs: _Any) -> _Any:
        return _import_module("vlmrl.api").train(*args, **kwargs)


_sys.modules[__name__].__class__ = _Callable
