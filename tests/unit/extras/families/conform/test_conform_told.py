"""families.conform.command: the promises of a model as short lines, which fit a terminal of 80 columns."""

from __future__ import annotations

import pytest

from vlmrl.extras.families.conform.check import Check
from vlmrl.extras.families.conform.command import show
from vlmrl.extras.families.conform.run import PROMISES, Report


def report(checks: tuple[Check, ...], name: str = "m") -> Report:
    facts = {"model_type": "qwen3_5", "architecture": "Qwen3_5ForConditionalGeneration", "layers": {"full": 2}, "experts": 0, "soft_cap": 0}
    return Report(name=name, facts=facts, versions={}, float64=True, checks=checks, seconds=dict.fromkeys(PROMISES, 1.25))


def test_eighty_columns_hold_every_promise_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = f"/models/{'long-' * 20}"
    kept = Check("P8", "rows", "logits", 3e-14, 1e-9)
    seen = Check("P8", "rows", "shifted", 0.5, 1e-9, control=True)
    show(report((kept, seen, Check("P1", "text", "ids", 1.0, 0.0)), path))
    text = capsys.readouterr().out
    assert path in text
    assert all(len(line) <= 80 or path in line for line in text.splitlines())
    assert "P8  kept: shared_prefix: a packed row is rows alone\n    largest 3e-14, limit 1e-09, control 0.5, 1.2 s\n" in text
    assert "P1  not kept: ids are the chat template's\n    largest 1, limit 0, 1.2 s\n" in text
    assert "P14 not run: needs --engine vllm, in an environment that has it\n" in text
    assert "P1 text, ids: 1 (limit 0)" in text
    words = " ".join(text.split())
    assert all(about in words for about, _, _ in PROMISES.values())
