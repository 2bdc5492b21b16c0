"""Modules that others import for one name that is hardly ever asked for: the name is stood in for, and the module imported when it is used.

* `transformers.processing_utils` names a class of `transformers.modeling_utils` to look whether an audio tokenizer is one; with it come
  `torch.distributed.tensor`, accelerate, deepspeed, scipy and what else trains models, to read a tokenizer.
* `transformers.utils.type_validators` names the table of `transformers.activations` for a few speech models; the same come.
* `torchvision.ops.roi_align` names a function of `torch._dynamo.utils`, which it calls on GPUs; with it come the compiler and sympy.
* `torchvision.tv_tensors` takes a function out of what is compiled (`torch.compiler.disable`), for which the compiler is imported.

A command that reads processors without a model spent more than half of its start on these. `install` changes nothing for whoever
imports such a module himself, before or after: what is asked for beside the names here is given by the module itself.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from vlmrl.extras.install.cheaper import AFTER, UNCOLLECTED, Cheaper

MODELS, ACTIVATIONS, COMPILER = "transformers.modeling_utils", "transformers.activations", "torch._dynamo.utils"


class _AudioTokenizers(type):
    """The type of the stand-in for a class that is only asked whether something is of it."""

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, importlib.import_module(MODELS).PreTrainedAudioTokenizerBase)


class PreTrainedAudioTokenizerBase(metaclass=_AudioTokenizers):
    """Stands in for the class of that name."""


class _Activations(Mapping[str, Any]):
    """Stands in for the table of that module."""

    def __getitem__(self, name: str) -> Any:
        return importlib.import_module(ACTIVATIONS).ACT2FN[name]

    def __iter__(self) -> Iterator[str]:
        return iter(importlib.import_module(ACTIVATIONS).ACT2FN)

    def __len__(self) -> int:
        return len(importlib.import_module(ACTIVATIONS).ACT2FN)


def is_compile_supported(device_type: Any) -> Any:
    """Stand in for the function of that name."""
    return importlib.import_module(COMPILER).is_compile_supported(device_type)


def disable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Stand in for `torch.compiler.disable`: where the compiler was never imported nothing is compiled, so there is nothing to take out."""
    taken_out: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **more)
        if not taken_out:
            taken_out.append(importlib.import_module("torch.compiler").disable(function))
        return taken_out[0](*args, **more)

    return call


@dataclass(frozen=True)
class InPlace:
    """What stands in while a module is run."""

    module: str
    """Whose names they are."""
    names: Mapping[str, Any]
    there: bool = False
    """The module is imported already, and only its names are others for the time."""


LATER: Mapping[str, InPlace] = {
    "transformers.processing_utils": InPlace(MODELS, {"PreTrainedAudioTokenizerBase": PreTrainedAudioTokenizerBase}),
    "transformers.utils.type_validators": InPlace(ACTIVATIONS, {"ACT2FN": _Activations()}),
    "torchvision.ops.roi_align": InPlace(COMPILER, {"is_compile_supported": is_compile_supported}),
    "torchvision.tv_tensors": InPlace("torch.compiler", {"disable": disable}, there=True),
}
"""Module that is run -> what stands in meanwhile."""


class _StandIn(ModuleType):
    """Stands in `sys.modules` while the other module is run. Any other name than those it was given is of the module itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Later(Loader):
    """Runs a module as its own loader does, with the stand-in in place."""

    def __init__(self, inner: Any, place: InPlace):
        self._inner, self._place = inner, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        name, known = self._place.module, sys.modules.get(self._place.module)
        if known is not None and self._place.there and "torch._dynamo" not in sys.modules:
            kept = {one: getattr(known, one) for one in self._place.names}
            vars(known).update(self._place.names)
            try:
                self._inner.exec_module(module)
            finally:
                vars(known).update(kept)
        elif known is not None or self._place.there:
            self._inner.exec_module(module)
        else:
            stand_in = _StandIn(name)
            vars(stand_in).update(self._place.names)
            sys.modules[name] = stand_in
            try:
                self._inner.exec_module(module)
            finally:
                if sys.modules.get(name) is stand_in:
                    del sys.modules[name]


class _Finder(MetaPathFinder):
    """Finds the modules of `LATER` and of `cheaper`, each as Python does."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        ours = fullname in LATER or fullname in AFTER or fullname in UNCOLLECTED
        spec = PathFinder.find_spec(fullname, path, target) if ours else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader, LATER[fullname]) if fullname in LATER else Cheaper(spec.loader, spec)
        return spec


def install() -> None:
    """Watch for the first import of the modules of `LATER` and of `cheaper` in this process. Imports none of them."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
