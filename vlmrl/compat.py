"""What is looked for under other names: torchvision next to a CPU-only torch, and modules of ours that have moved.

torchvision: nothing is done on machines where it loads by itself. The package index has no CPU build of torchvision. Its compiled
operators do not load next to a CPU torch, and the import then dies because two operator schemas are missing. All that we and transformers
use of torchvision is plain Python (transforms, the Qwen image and video processors), so declaring the two schemas is enough. Our code
calls `ensure_torchvision()` before the first import of transformers' processors, and `import vlmrl` calls `install_hook()`, so that what
else runs in the process finds a torchvision that works: rewards of users, lmms-eval (its entry point is of this package). Nothing is put
into the environment: a Python process that does not import `vlmrl` is left alone, and a checkout does not stand in for another. Other
programs on such a machine import `vlmrl` before transformers, or get a `sitecustomize` that does, as the tests' vLLM server.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

MOVED = Path(__file__).with_name("moved.json")
"""Module of an earlier version -> where it is now, both without `vlmrl.`; what lies below it moved along."""
_LIBRARY: Any = None  # must stay alive: the operators vanish with the Library object
_OPERATORS = ("nms", "qnms")


def _declare() -> None:
    global _LIBRARY
    import torch

    _LIBRARY = torch.library.Library("torchvision", "DEF")
    for operator in _OPERATORS:
        _LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing; the first time somebody looks for torchvision, declares the operators if its own do not load."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname != "torchvision" or self not in sys.meta_path:
            return
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torchvision")
        if spec is None or not spec.submodule_search_locations or _LIBRARY is not None:
            return
        import torch

        for library in Path(next(iter(spec.submodule_search_locations))).glob("_C*.so"):
            try:
                torch.ops.load_library(str(library))
            except OSError:
                _declare()
            return


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a module under the name that it had before it moved, for one release, and says the new one."""

    def __init__(self) -> None:
        self._now: dict[str, str] = json.loads(MOVED.read_text(encoding="utf-8"))

    def now(self, name: str) -> str | None:
        """Where a module is; None for a name that nothing had."""
        old, below = name.removeprefix("vlmrl."), ""
        while old and old not in self._now:
            old, _, last = old.rpartition(".")
            below = f".{last}{below}"
        return f"vlmrl.{self._now[old]}{below}" if old else None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith("vlmrl.") or self.now(fullname) is None:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: Any) -> None:
        old, new = module.__name__, str(self.now(module.__name__))
        sys.modules[old] = importlib.import_module(new)  # the import system gives what stands here
        warnings.warn(f"{old} is {new} now; the old name goes with the next release", FutureWarning, stacklevel=2)


def install_hook() -> None:
    """Watch for the first import of torchvision in this process, and for modules by their earlier names. Imports nothing heavy."""
    for kind in (_Moved, _BeforeTorchvision):
        if not any(isinstance(finder, kind) for finder in sys.meta_path):
            sys.meta_path.insert(0, kind())


def ensure_torchvision() -> str:
    """Return 'native', 'absent' or 'shimmed'.

    Raises:
        RuntimeError: torchvision is present but broken for another reason than its missing operators.
    """
    if _LIBRARY is not None:
        return "shimmed"
    try:
        import torchvision  # noqa: F401

        return "native" if _LIBRARY is None else "shimmed"
    except ImportError:
        return "absent"
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _declare()
    importlib.import_module("torchvision")
    return "shimmed"
