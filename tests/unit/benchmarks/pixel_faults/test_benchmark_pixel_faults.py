"""benchmarks/pixel_faults: the page from its numbers, and which adapters there are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.common import ROOT, BenchmarkError
from benchmarks.pixel_faults.__main__ import adapter
from benchmarks.pixel_faults.page import lines
from vlmrl.extras.pixels.faults import FAULTS
from vlmrl.extras.pixels.own import Vlmrl


def result() -> dict[str, Any]:
    verdicts = [{"fault": fault.key, "verdict": "noticed", "how": f"a | b of {fault.key}"} for fault in FAULTS]
    trainers = [{"name": name, "version": "1", "verdicts": verdicts} for name in ("a", "b")]
    return {"trainers": trainers, "machine": {"cores": 2}, "versions": {"torch": "2"}, "revision": "abc"}


def test_a_row_for_each_fault_and_a_column_for_each_trainer() -> None:
    page = "\n".join(lines(result()))
    for fault in FAULTS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {fault.title} ")]
        assert row.count(f"**noticed**: a \\| b of {fault.key}") == 2
        (fed,) = [line for line in page.splitlines() if line.startswith(f"| `{fault.key}` |")]
        assert all(f"/issues/{name.partition('#')[2]})" in fed for name in fault.threads)


def test_adapters_by_name_and_by_place() -> None:
    assert isinstance(adapter("vlmrl"), Vlmrl)
    assert adapter("tests.support.naive_pixels:Naive").name == "naive"
    with pytest.raises(BenchmarkError, match="no adapter is called 'verl'"):
        adapter("verl")


def test_the_page_is_that_of_its_numbers() -> None:
    path = ROOT / "docs/benchmarks/pixel_faults.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert path.with_suffix(".md").read_text(encoding="utf-8") == "\n".join(lines(found))
    for trainer in found["trainers"]:
        assert [one["fault"] for one in trainer["verdicts"]] == [fault.key for fault in FAULTS]
