"""`vlmrl check --engine vllm` on tiny models: vLLM takes our weights and media, and has our log-probs of its own answers (P14, P18)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.families import tiny_folder
from vlmrl.extras.families.conform import engine
from vlmrl.extras.families.conform.run import Report, conform
from vlmrl.extras.families.conform.subject import Tried, open_subject

pytest.importorskip("vllm", reason="vLLM is not installed here; see docs/rollout.md")
pytestmark = pytest.mark.slow
PICTURES, CLIPS = {"image", "text", "two", "behind"}, {"video", "mixed"}


def report_of(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tried, Report]:
    tried = open_subject(str(tiny_folder(name, folder, monkeypatch, head=engine.HEAD)))
    return tried, conform(tried, name, ("P14", "P18"), "vllm")


@pytest.mark.parametrize("name", ["internvl", "qwen2_vl", "mistral3"])
def test_vllm_has_our_log_probs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, report = report_of(name, tmp_path, monkeypatch)
    print(name, {c.case: c.value for c in report.checks})
    assert report.failed() == []
    assert {c.case for c in report.checks if c.promise == "P14"} == PICTURES
    assert {c.case for c in report.checks if c.promise == "P18"} == (set() if name == "mistral3" else CLIPS)
    assert report.versions["vllm"] == "0.32.0"
    answer: Any = dataclasses.make_dataclass("Answer", ["ids", "logprobs"])((40, 50), (0.0, 0.0))
    assert not engine._compared("P14", tried, "image", answer, ()).ok, "other log-probs are seen"


@pytest.mark.parametrize(
    ("name", "why"), [("qwen2_5_vl", "log-probs"), *((name, "its media") for name in ("smolvlm", "qwen3_vl", "qwen3_vl_moe", "glm4v_moe"))]
)
def test_pictures_are_kept_and_clips_are_not(name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Qwen2.5-VL vLLM has the rule `max` alone for positions; of SmolVLM it has no clips; its processor of Qwen3-VL asks the model's own
    more than once about a clip, and that of GLM-4.5V makes a video of frames whose placeholders are those of pictures."""
    _, report = report_of(name, tmp_path, monkeypatch)
    print(name, [(c.promise, c.case, c.what, c.value, c.note) for c in report.checks])
    assert report.failed("P14") == []
    assert {c.case for c in report.checks if c.promise == "P14"} == PICTURES
    assert {c.case for c in report.failed("P18")} == CLIPS
    assert {c.what.split(" of ")[0] for c in report.failed("P18")} == {why}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gemma3", "loader refuses a tensor of the trainer"),  # transformers 5.19 has other names in its tower than published files
        ("glm4v", "12 tensors of the trainer went nowhere in vLLM's model"),  # biases of the decoder's attention
        ("glm46v", "vLLM has no model"),
    ],
)
def test_what_vllm_does_not_take_is_said(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = report_of(name, tmp_path, monkeypatch)
    assert report.failed("P14")
    assert all(said in check.note for check in report.failed("P14"))


def test_a_layer_that_sees_other_weights_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers are of the weights that are sent, whatever lies in the folder."""
    tried = open_subject(str(tiny_folder("internvl", tmp_path, monkeypatch, head=engine.HEAD)), ("image",))
    with torch.no_grad():
        for parameter in tried.subject.model.parameters():
            parameter.mul_(1.1)
    assert conform(tried, "internvl", ("P14",), "vllm").failed() == []
