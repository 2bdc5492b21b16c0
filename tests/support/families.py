"""Tiny models of any family for tests. Where the package num2words is missing, SmolVLM's processor gets numerals in place of words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vlmrl.extras.families.tiny import write_tiny


def tiny_folder(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, head: int | None = None) -> Path:
    """A folder with a tiny model of a configuration."""
    if name == "smolvlm":
        import transformers.models.smolvlm.processing_smolvlm as module

        if getattr(module, "num2words", None) is None:
            monkeypatch.setattr(module, "num2words", _numeral)
    write_tiny(name, folder / name, head=head)
    return folder / name


def _numeral(number: int, **_: Any) -> str:
    return str(number)
