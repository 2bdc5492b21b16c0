"""How tests break what a check measures, in processes that the check starts too. Nobody else sets this variable."""

from __future__ import annotations

import importlib
import os

VARIABLE = "VLMRL_GPU_CHECK_FAULT"
"""`module:function`, called at the start of every process of a check."""


def install() -> None:
    name = os.environ.get(VARIABLE)
    if name:
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)()
