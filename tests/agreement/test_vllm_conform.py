"""`vlmrl check --engine vllm` on tiny models: vLLM has our ids of prompts with pictures, and our log-probs of its own answers (P14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.families import tiny_folder
from vlmrl.extras.families.conform import engine
from vlmrl.extras.families.conform.run import conform
from vlmrl.extras.families.conform.subject import open_subject

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")
pytestmark = pytest.mark.slow
CASES = ("image", "text", "two")


@pytest.mark.parametrize("name", ["qwen2_5_vl", "internvl", "smolvlm"])
def test_vllm_has_our_ids_and_log_probs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = open_subject(str(tiny_folder(name, tmp_path, monkeypatch, head=engine.HEAD)), CASES)
    report = conform(tried, name, ("P14",), "vllm")
    assert report.failed() == []
    assert {c.case for c in report.checks} == {"registry", *CASES}
    plain = tried.scored("image", [[40, 50]])
    wrong = engine._compared(tried, "image", [*plain.prompt.ids_P.tolist(), 40], [40, 50], [0.0, 0.0])
    assert [c.ok for c in wrong] == [False, False], "another prompt and other log-probs are seen"


def test_gemma3_is_not_kept_where_attention_has_no_mask_for_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of a Gemma 3 picture see each other. vLLM 0.32's attention on CPUs says that it cannot do that, and is taken all the same."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # pyright: ignore[reportMissingImports]

    tried = open_subject(str(tiny_folder("gemma3", tmp_path, monkeypatch, head=engine.HEAD)), CASES)
    report = conform(tried, "gemma3", ("P14",), "vllm")
    if CPUAttentionBackend.supports_mm_prefix():
        assert report.failed() == []
        return
    assert {(c.case, c.what.split(" of ")[0]) for c in report.failed()} == {("image", "log-probs"), ("two", "log-probs")}
    assert min(c.value for c in report.failed()) > 1e-2, "and its ids, and its log-probs behind text alone, are ours"
