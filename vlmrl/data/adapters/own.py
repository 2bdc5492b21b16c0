"""Rows of our own schema (`data.row`): they say their answer type, and nothing is converted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.data.adapters.base import OWN, ImportOptions

name = OWN


def detect(row: Mapping[str, Any]) -> bool:
    return "answer_type" in row


def convert(row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    return dict(row)
