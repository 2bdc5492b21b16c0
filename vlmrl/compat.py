"""Make `import torchvision` work next to a CPU-only torch. Does nothing on machines where torchvision loads by itself.

The package index has no CPU build of torchvision. Its compiled operators do not load next to a CPU torch, and the import
then dies because two operator schemas are missing. All that we and transformers use of torchvision is plain Python
(transforms, the Qwen image and video processors), so declaring the two schemas is enough. Call `ensure_torchvision()`
before the first import of transformers' processors; it is cheap and idempotent.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_LIBRARY: Any = None  # must stay alive: the operators vanish with the Library object


def ensure_torchvision() -> str:
    """Return 'native', 'absent' or 'shimmed'.

    Raises:
        RuntimeError: torchvision is present but broken for another reason than its missing operators.
    """
    global _LIBRARY
    if _LIBRARY is not None:
        return "shimmed"
    try:
        import torchvision  # noqa: F401

        return "native"
    except ImportError:
        return "absent"
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    import torch

    _LIBRARY = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        _LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
    return "shimmed"
