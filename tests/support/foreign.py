"""Rows of other trainers in tests: conversion as a source does it, and the round trip of the gold answer."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from vlmrl.data.adapters import ADAPTERS, Importer, ImportOptions, detect
from vlmrl.data.row import parse_row
from vlmrl.errors import RowError
from vlmrl.methods import registries
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample

REWARDS = {"bbox": "box_iou", "time_span": "temporal_iou", "number": "number", "regression": "number"}


def read(row: dict[str, Any], adapter: str | None = None, place: int = 1, **options: Any) -> Sample:
    """A foreign row as a sample. The row itself must stay as it was."""
    before = copy.deepcopy(row)
    (converted,) = Importer(ImportOptions(adapter=adapter, **options)).rows(row, where="rows.jsonl:1", place=place)
    assert row == before
    return parse_row(converted, source="rows.jsonl:1", media_root=".")


def earns_full_reward(sample: Sample, name: str | None = None) -> None:
    """The gold answer gets the highest score of all, and 1, through the parser that training uses; in every answer format."""
    name = name or REWARDS.get(sample.answer_type, "exact")
    runner = RewardRunner([(name, 1.0, registries()["reward"].bind(name, {}))])
    for answer_format in ("think", "answer_only", "think_or_not"):
        assert runner.self_test([sample], answer_format) == []


def refused(row: dict[str, Any], reason: str, match: str | None = None, adapter: str | None = None, **options: Any) -> None:
    with pytest.raises(RowError, match=match) as caught:
        read(row, adapter, **options)
    assert caught.value.reason == reason, str(caught.value)


def only_detected_by(name: str, *rows: dict[str, Any]) -> None:
    for row in rows:
        assert [other for other, adapter in ADAPTERS.items() if adapter.detect(row)] == [name]
        assert detect(row) == name
