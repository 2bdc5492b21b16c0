"""`vlmrl conform --engine vllm` on tiny models: vLLM has our ids of prompts with pictures, and our log-probs of its own answers (P14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.families import tiny_folder
from vlmrl.conform import engine
from vlmrl.conform.run import conform
from vlmrl.conform.subject import open_subject

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")
pytestmark = pytest.mark.slow
CASES = ("image", "text", "two")


@pytest.mark.parametrize("name", ["qwen2_5_vl", "internvl", "smolvlm", "gemma3"])
def test_vllm_has_our_ids_and_log_probs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = open_subject(str(tiny_folder(name, tmp_path, monkeypatch)), CASES)
    report = conform(tried, name, ("P14",), "vllm")
    assert report.failed() == []
    assert {c.case for c in report.checks} == {"registry", *CASES}
    plain = tried.scored("image", [[40, 50]])
    wrong = engine._compared(tried, "image", [*plain.prompt.ids_P.tolist(), 40], [40, 50], [0.0, 0.0])
    assert [c.ok for c in wrong] == [False, False], "another prompt and other log-probs are seen"
