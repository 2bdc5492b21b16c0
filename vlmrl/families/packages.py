"""Packages that the processors of single families need beside transformers, and the extras that bring them."""

from __future__ import annotations

EXTRAS = {"num2words": "smolvlm"}
"""Package -> extra of this one. SmolVLM's processor writes the number of a clip's frames as a word."""


def what_is_missing(error: ImportError, what: str) -> str:
    """Write a line for something that does not load because a package is missing, with how to get it. `what`: as `the processor of 'x'`."""
    first = str(error).strip().split("\n")[0]
    for package, extra in EXTRAS.items():
        if package in str(error):
            return f"{what} needs the package {package}, which is not here; pip install 'vlmrl[{extra}]'"
    return f"{what} needs a package that is not here: {first}"
