"""Make `import torchvision` work next to a CPU-only torch. Does nothing on machines where torchvision loads by itself.

The package index has no CPU build of torchvision. Its compiled operators do not load next to a CPU torch, and the import
then dies because two operator schemas are missing. All that we and transformers use of torchvision is plain Python
(transforms, the Qwen image and video processors), so declaring the two schemas is enough. Our code calls
`ensure_torchvision()` before the first import of transformers' processors, and `import vlmrl` calls `install_hook()`, so that what else
runs in the process finds a torchvision that works: rewards of users, lmms-eval (its entry point is of this package). Nothing is put into
the environment: a Python process that does not import `vlmrl` is left alone, and a checkout does not stand in for another. Other programs
on such a machine import `vlmrl` before transformers, or get a `sitecustomize` that does, as the tests' vLLM server.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from pathlib import Path
from typing import Any

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


def install_hook() -> None:
    """Watch for the first import of torchvision in this process. Imports nothing heavy by itself."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())


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
