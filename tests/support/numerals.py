"""SmolVLM's processor writes numbers as words and needs the package num2words for it; where that is missing it gets numerals. A plug-in,
so that runs in child processes have it too."""

from __future__ import annotations

from typing import Any

import transformers.models.smolvlm.processing_smolvlm as processing


def numeral(number: int, **_: Any) -> str:
    """In place of the word."""
    return str(number)


if getattr(processing, "num2words", None) is None:
    processing.num2words = numeral  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
